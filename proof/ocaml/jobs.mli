
val negb : bool -> bool

val length : 'a1 list -> int

val app : 'a1 list -> 'a1 list -> 'a1 list

module Nat :
 sig
  val ltb : int -> int -> bool
 end

val nth_error : 'a1 list -> int -> 'a1 option

val map : ('a1 -> 'a2) -> 'a1 list -> 'a2 list

val existsb : ('a1 -> bool) -> 'a1 list -> bool

val forallb : ('a1 -> bool) -> 'a1 list -> bool

val filter : ('a1 -> bool) -> 'a1 list -> 'a1 list

val find : ('a1 -> bool) -> 'a1 list -> 'a1 option

val firstn : int -> 'a1 list -> 'a1 list

val skipn : int -> 'a1 list -> 'a1 list

val seq : int -> int -> int list

type path = int list

type claim = { num : int; job : int; path0 : path; shared : bool }

val prefix : path -> path -> bool

val conflict : claim -> claim -> bool

type effect =
| Wait
| Drop
| Cancels

type edge = { to0 : int; if_finished : bool; if_failed : effect;
              if_canceled : bool }

type job_state =
| Scheduled
| Deferred
| Parent
| Queued
| Backing
| Started
| Finished
| Failed
| Canceled
| Gone

val drop : bool -> effect

val effect_of : edge -> job_state -> effect

type job0 = { state : job_state; claims : claim list; needs : edge list;
              open0 : edge list; tries : int }

type world = { jobs : (int -> job0); count : int; line : int list }

val no_job : job0

val empty : world

val before : int -> int list -> int list

val without : int -> int list -> int list

val placed : world -> int -> bool

val claims_before : world -> int -> claim list list

val clash : claim list -> claim list -> bool

val unreached : world -> int -> int -> int -> bool

val closes_no_cycle : world -> int -> edge list -> bool

type revival =
| Always
| When_none_waits
| When_no_cycle

type rules = { ready : (claim list list -> claim list -> bool);
               admissible : (claim list -> bool); places_at_enqueue : 
               bool; children_checked : bool; revives : revival }

val plain_ready : claim list list -> claim list -> bool

type back =
| At_once
| On_its_place
| Off_its_place

type transition =
| Due
| Put_off
| Resolve of int
| Place
| Start
| Finish
| Fail of bool
| Stop
| Again of back
| Await of edge list
| Leave of edge list
| Close of bool
| Cancel
| Redrive of int
| Revive of int
| Discard
| Free
| Prune

type event =
| Submit of claim list * bool * edge list * int
| At of int * transition

type place_change =
| Keeps
| Leaves
| Joins

val remove_edge : int -> edge list -> edge list

val waited_for : world -> int -> bool

val known : world -> edge list -> bool

val may_revive : rules -> world -> int -> bool

val becomes :
  rules -> world -> int -> transition -> (((job_state * edge
  list) * int) * place_change) option

val line_after : int list -> int -> place_change -> int list

val changed :
  world -> int -> job_state -> edge list -> int -> place_change -> world

val act : rules -> world -> event -> world option

val revived_in_turn : rules

val is_in : int list -> int -> bool

val sort :
  (int -> int list) -> int -> int list -> int list -> int list * int list

val in_order : (int -> int list) -> int list -> int list option
