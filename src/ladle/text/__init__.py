"""Files and folders to documents: UTF-8 text in pieces, and where each came from."""

from ladle.text.documents import Source as Source
from ladle.text.documents import Sources as Sources
from ladle.text.documents import find as find
from ladle.text.pieces import Pieces as Pieces
