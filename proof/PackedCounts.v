(** The four counts of a gate packed into one int, 32 bits each, as trie.py does: to test whether a mode fits is one
    [&], to count it one [+], as long as no count reaches 2^32. *)

From Coq Require Import List NArith Lia Bool.
Require Import Claims Walks Settled Trie.
Open Scope N_scope.

Definition bits (m : mode) : N := match m with IS => 0 | IX => 32 | Sh => 64 | Ex => 96 end.

(** ONE[m] of trie.py. *)
Definition one (m : mode) : N := N.shiftl 1 (bits m).
(** _MASK[m] of trie.py. *)
Definition mask (m : mode) : N := N.shiftl (N.ones 32) (bits m).
(** CLASHES[m] of trie.py. *)
Definition clash_mask (m : mode) : N :=
  match m with
  | IS => mask Ex
  | IX => N.lor (mask Sh) (mask Ex)
  | Sh => N.lor (mask IX) (mask Ex)
  | Ex => N.lor (N.lor (N.lor (mask IS) (mask IX)) (mask Sh)) (mask Ex)
  end.

(** The int that a node holds. *)
Definition packed (h : counts) : N :=
  N.of_nat (nIS h) + N.of_nat (nIX h) * one IX + N.of_nat (nS h) * one Sh + N.of_nat (nX h) * one Ex.

(** No count reaches 2^32. *)
Definition small (h : counts) : Prop := forall m, N.of_nat (count h m) < 2 ^ 32.

(** Masking 32 bits is shifting, taking the lowest 32 and shifting back. *)
Lemma land_mask x k : N.land x (N.shiftl (N.ones 32) k) = N.shiftl (N.land (N.shiftr x k) (N.ones 32)) k.
Proof.
  apply N.bits_inj. intros n. rewrite N.land_spec. destruct (N.lt_ge_cases n k) as [L|L].
  - rewrite !N.shiftl_spec_low by auto. apply andb_false_r.
  - rewrite !N.shiftl_spec_high' by auto. rewrite N.land_spec, N.shiftr_spec', N.sub_add by auto. reflexivity.
Qed.

(** The bits of a mode are zero exactly if its count is: no count reaches 2^32, so none runs into the next. *)
Lemma mask_reads h m : small h -> N.land (packed h) (mask m) = 0 <-> count h m = 0%nat.
Proof.
  intros B. unfold mask. rewrite land_mask, N.land_ones, N.shiftr_div_pow2.
  assert (E : (packed h / 2 ^ bits m) mod 2 ^ 32 = N.of_nat (count h m)).
  { pose proof (B IS) as B1; pose proof (B IX) as B2; pose proof (B Sh) as B3; pose proof (B Ex) as B4.
    destruct h as [a b c d]. unfold packed.
    destruct m; cbn [count nIS nIX nS nX bits] in *;
      change (one IX) with 4294967296; change (one Sh) with 18446744073709551616;
      change (one Ex) with 79228162514264337593543950336; change (2 ^ 32) with 4294967296 in *;
      generalize dependent (N.of_nat a); intros x B1; generalize dependent (N.of_nat b); intros y B2;
      generalize dependent (N.of_nat c); intros z B3; generalize dependent (N.of_nat d); intros t B4.
    - change (2 ^ 0) with 1. rewrite N.div_1_r. symmetry.
      apply (N.mod_unique _ _ (y + z * 4294967296 + t * 18446744073709551616)); lia.
    - rewrite <- (N.div_unique _ 4294967296 (y + z * 4294967296 + t * 18446744073709551616) x) by lia.
      symmetry. apply (N.mod_unique _ _ (z + t * 4294967296)); lia.
    - change (2 ^ 64) with 18446744073709551616.
      rewrite <- (N.div_unique _ 18446744073709551616 (z + t * 4294967296) (x + y * 4294967296)) by lia.
      symmetry. apply (N.mod_unique _ _ t); lia.
    - change (2 ^ 96) with 79228162514264337593543950336.
      rewrite <- (N.div_unique _ 79228162514264337593543950336 t (x + y * 4294967296 + z * 18446744073709551616)) by
        lia.
      symmetry. apply (N.mod_unique _ _ 0); lia. }
  rewrite E, N.shiftl_eq_0_iff. lia.
Qed.

(** [held & CLASHES[mode]] is zero exactly if the mode clashes with no count: the mask is made of those of the modes
    that do not fit. *)
Theorem packed_clash h m : small h -> N.land (packed h) (clash_mask m) = 0 <-> clashes h m = false.
Proof.
  intros B. pose proof (mask_reads h IS B) as R1; pose proof (mask_reads h IX B) as R2;
  pose proof (mask_reads h Sh B) as R3; pose proof (mask_reads h Ex B) as R4.
  destruct h as [a b c d]. cbn [count nIS nIX nS nX] in *.
  destruct m; unfold clash_mask, clashes; cbn [nIS nIX nS nX];
    rewrite ?N.land_lor_distr_r, ?N.lor_eq_0_iff, ?R1, ?R2, ?R3, ?R4, ?orb_false_iff, ?PeanoNat.Nat.ltb_ge; lia.
Qed.

(** Adding [ONE[mode]] adds one to its count. *)
Theorem packed_add h m : packed (add h m) = packed h + one m.
Proof.
  destruct h as [a b c d]. unfold packed.
  destruct m; cbn [add nIS nIX nS nX]; rewrite ?Nnat.Nat2N.inj_succ; change (one IS) with 1; lia.
Qed.

(** Subtracting [ONE[mode]] takes one from its count, if it is not zero. *)
Theorem packed_sub h m : (0 < count h m)%nat -> packed (sub h m) = packed h - one m.
Proof.
  intros P. replace h with (add (sub h m) m) at 2.
  - rewrite packed_add. lia.
  - destruct h as [a b c d], m; cbn in *; f_equal; lia.
Qed.
