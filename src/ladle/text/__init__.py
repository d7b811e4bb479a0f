"""Files and folders to documents: UTF-8 text in pieces, and where each came from."""

from ladle.text.documents import Source as Source
from ladle.text.documents import Sources as Sources
from ladle.text.documents import find as find
from ladle.text.pieces import Pieces as Pieces
from ladle.text.suffixes import RECORD_SUFFIXES as RECORD_SUFFIXES
from ladle.text.suffixes import TEXT_SUFFIXES as TEXT_SUFFIXES
