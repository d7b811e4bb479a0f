"""Which files of a folder are text."""

from __future__ import annotations

# Prose and markup that people write, and programs. No data (json, csv), no settings (toml, yaml, ini), no logs: a corpus
# that wants them names the files. Records (jsonl, parquet) are several documents a file, and not read as text.
TEXT_SUFFIXES = frozenset(
    """
    .txt .text .md .markdown .rst .adoc .org .tex .bib .html .htm .xhtml .xml .srt .vtt .po
    .py .pyi .pyx .ipy .rb .pl .pm .php .lua .tcl .r .jl .sh .bash .zsh .fish .ps1 .bat .awk .sed .vim
    .c .h .cc .hh .cpp .hpp .cxx .hxx .m .mm .cu .cuh .go .rs .zig .d .nim .v .sv .vhd .vhdl .s .asm .f .f90 .f95 .for
    .java .kt .kts .scala .groovy .clj .cljs .cs .fs .vb .swift .dart .ml .mli .hs .lhs .elm .ex .exs .erl .hrl .lisp .el
    .scm .rkt .pas .ada .adb .ads .cob .pro .js .mjs .cjs .jsx .ts .mts .tsx .vue .svelte .css .scss .sass .less .sql
    .proto .thrift .graphql .cmake .mk .gradle .nix .tf .ninja .wat .glsl .hlsl .wgsl
    """.split()  # noqa: SIM905
)

# JSON lines: what a folder is searched for when records are asked for.
RECORD_SUFFIXES = frozenset({".jsonl", ".jsonlines", ".ndjson"})

# Folders that hold other people's packages or a program's leavings; hidden folders are passed over too.
SKIPPED_FOLDERS = frozenset({"__pycache__", "site-packages", "dist-packages", "node_modules"})
