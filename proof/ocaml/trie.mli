
val negb : bool -> bool

val fst : ('a1 * 'a2) -> 'a1

val snd : ('a1 * 'a2) -> 'a2

val length : 'a1 list -> int

val app : 'a1 list -> 'a1 list -> 'a1 list

val pred : int -> int

val add : int -> int -> int

val sub : int -> int -> int



module Nat :
 sig
  val ltb : int -> int -> bool
 end

val list_eq_dec : ('a1 -> 'a1 -> bool) -> 'a1 list -> 'a1 list -> bool

val map : ('a1 -> 'a2) -> 'a1 list -> 'a2 list

val fold_left : ('a1 -> 'a2 -> 'a1) -> 'a2 list -> 'a1 -> 'a1

val fold_right : ('a2 -> 'a1 -> 'a1) -> 'a1 -> 'a2 list -> 'a1

val existsb : ('a1 -> bool) -> 'a1 list -> bool

val filter : ('a1 -> bool) -> 'a1 list -> 'a1 list

val firstn : int -> 'a1 list -> 'a1 list

type path = int list

type claim = { num : int; job : int; path0 : path; shared : bool }

val depth : claim -> int

val prefix : path -> path -> bool

val conflict : claim -> claim -> bool

type mode =
| IS
| IX
| Sh
| Ex

val fits : mode -> mode -> bool

val wants : claim -> int -> mode

type walk = { of0 : claim; pos : int }

val eqb_path : path -> path -> bool

val in_the_wayb : walk -> walk -> bool

val blockedb : walk list -> walk -> bool

val walk_down : walk list -> claim -> int -> int -> int

val settled : claim list -> walk list

type ask = path * bool

val leb_path : path -> path -> bool

val insert : ask -> ask list -> ask list

val sort : ask list -> ask list

val merge : ask -> ask list -> ask list

val normalise : ask list -> ask list

type counts = { nIS : int; nIX : int; nS : int; nX : int }

val zero : counts

val add0 : counts -> mode -> counts

val sub0 : counts -> mode -> counts

val clashes : counts -> mode -> bool

type gate = { held : counts; line : claim list; to_advance : bool }

val nothing : gate

type gates = (path * gate) list

val find : gates -> path -> gate

val is_empty : gate -> bool

val drop : gates -> path -> gates

val put : gates -> path -> gate -> gates

val gate_of : claim -> int -> path

val stops : gate -> mode -> bool

val walk_on : int -> gates -> claim -> int -> gates * int

type state = { at_gates : gates; walks : walk list; last_num : int;
               last_job : int }

val start : state

val set_pos : int -> int -> walk list -> walk list

val place : state -> int -> path -> bool -> state

val clear_to_advance : gates -> path -> gates

val advance_loop :
  int -> path -> int -> int -> int list -> state ->
  state * ((int * bool) * int list)

val advance : state -> path -> int -> state * ((int * bool) * int list)

val recheck : int -> gate -> gate

val without : int -> claim list -> claim list

val left_at : claim -> int -> int -> gate -> gate

val leave_up : int -> gates -> claim -> int -> gates

val leave : state -> walk -> state

val enqueue : state -> ask list -> state

val vacate : state -> int -> state
