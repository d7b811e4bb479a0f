"""Documents to ids: bytes, chars, GPT-2's BPE and tiktoken's others, a Hugging Face tokenizer.json."""

from ladle.tokens.interface import Tokenizer as Tokenizer
from ladle.tokens.markers import END_OF_TEXT as END_OF_TEXT
from ladle.tokens.markers import MarkerCounter as MarkerCounter
from ladle.tokens.spec import from_identity as from_identity
from ladle.tokens.spec import tokenizer as tokenizer
