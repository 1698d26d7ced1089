(** The algorithm as an OCaml program; natural numbers become ints. *)

Require Import Claims Walks Settled Trie.
From Coq Require Import Extraction ExtrOcamlBasic ExtrOcamlNatInt.

Extraction Language OCaml.
Set Warnings "-extraction-default-directory".
Extraction "trie.ml" start enqueue advance vacate settled conflict.
