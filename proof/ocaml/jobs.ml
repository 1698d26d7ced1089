
(** val negb : bool -> bool **)

let negb = function
| true -> false
| false -> true

(** val length : 'a1 list -> int **)

let rec length = function
| [] -> 0
| _ :: l' -> Stdlib.Int.succ (length l')

(** val app : 'a1 list -> 'a1 list -> 'a1 list **)

let rec app l m =
  match l with
  | [] -> m
  | a :: l1 -> a :: (app l1 m)

module Nat =
 struct
  (** val ltb : int -> int -> bool **)

  let ltb n m =
    (<=) (Stdlib.Int.succ n) m
 end

(** val nth_error : 'a1 list -> int -> 'a1 option **)

let rec nth_error l n =
  (fun fO fS n -> if n=0 then fO () else fS (n-1))
    (fun _ -> match l with
              | [] -> None
              | x :: _ -> Some x)
    (fun n0 -> match l with
               | [] -> None
               | _ :: l0 -> nth_error l0 n0)
    n

(** val map : ('a1 -> 'a2) -> 'a1 list -> 'a2 list **)

let rec map f = function
| [] -> []
| a :: t -> (f a) :: (map f t)

(** val existsb : ('a1 -> bool) -> 'a1 list -> bool **)

let rec existsb f = function
| [] -> false
| a :: l0 -> (||) (f a) (existsb f l0)

(** val forallb : ('a1 -> bool) -> 'a1 list -> bool **)

let rec forallb f = function
| [] -> true
| a :: l0 -> (&&) (f a) (forallb f l0)

(** val filter : ('a1 -> bool) -> 'a1 list -> 'a1 list **)

let rec filter f = function
| [] -> []
| x :: l0 -> if f x then x :: (filter f l0) else filter f l0

(** val find : ('a1 -> bool) -> 'a1 list -> 'a1 option **)

let rec find f = function
| [] -> None
| x :: tl -> if f x then Some x else find f tl

(** val firstn : int -> 'a1 list -> 'a1 list **)

let rec firstn n l =
  (fun fO fS n -> if n=0 then fO () else fS (n-1))
    (fun _ -> [])
    (fun n0 -> match l with
               | [] -> []
               | a :: l0 -> a :: (firstn n0 l0))
    n

(** val skipn : int -> 'a1 list -> 'a1 list **)

let rec skipn n l =
  (fun fO fS n -> if n=0 then fO () else fS (n-1))
    (fun _ -> l)
    (fun n0 -> match l with
               | [] -> []
               | _ :: l0 -> skipn n0 l0)
    n

(** val seq : int -> int -> int list **)

let rec seq start len =
  (fun fO fS n -> if n=0 then fO () else fS (n-1))
    (fun _ -> [])
    (fun len0 -> start :: (seq (Stdlib.Int.succ start) len0))
    len

type path = int list

type claim = { num : int; job : int; path0 : path; shared : bool }

(** val prefix : path -> path -> bool **)

let rec prefix p q =
  match p with
  | [] -> true
  | a :: p' ->
    (match q with
     | [] -> false
     | b :: q' -> (&&) ((=) a b) (prefix p' q'))

(** val conflict : claim -> claim -> bool **)

let conflict c d =
  (&&) ((||) (prefix c.path0 d.path0) (prefix d.path0 c.path0))
    (negb ((&&) c.shared d.shared))

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

(** val drop : bool -> effect **)

let drop = function
| true -> Drop
| false -> Cancels

(** val effect_of : edge -> job_state -> effect **)

let effect_of e = function
| Finished -> drop e.if_finished
| Failed -> e.if_failed
| Canceled -> drop e.if_canceled
| Gone -> (match e.if_failed with
           | Wait -> Cancels
           | x -> x)
| _ -> Wait

type job0 = { state : job_state; claims : claim list; needs : edge list;
              open0 : edge list; tries : int }

type world = { jobs : (int -> job0); count : int; line : int list }

(** val no_job : job0 **)

let no_job =
  { state = Gone; claims = []; needs = []; open0 = []; tries = 0 }

(** val empty : world **)

let empty =
  { jobs = (fun _ -> no_job); count = 0; line = [] }

(** val before : int -> int list -> int list **)

let rec before j = function
| [] -> []
| k :: t -> if (=) k j then [] else k :: (before j t)

(** val without : int -> int list -> int list **)

let without j l =
  filter (fun k -> negb ((=) k j)) l

(** val placed : world -> int -> bool **)

let placed w j =
  existsb ((=) j) w.line

(** val claims_before : world -> int -> claim list list **)

let claims_before w j =
  map (fun k -> (w.jobs k).claims) (before j w.line)

(** val clash : claim list -> claim list -> bool **)

let clash cs ds =
  existsb (fun c -> existsb (conflict c) ds) cs

(** val unreached : world -> int -> int -> int -> bool **)

let rec unreached w j n d =
  (fun fO fS n -> if n=0 then fO () else fS (n-1))
    (fun _ -> false)
    (fun n' ->
    (&&) (negb ((=) d j))
      (forallb (fun e -> unreached w j n' e.to0) (w.jobs d).open0))
    n

(** val closes_no_cycle : world -> int -> edge list -> bool **)

let closes_no_cycle w j es =
  forallb (fun e -> unreached w j (Stdlib.Int.succ w.count) e.to0) es

type revival =
| Always
| When_none_waits
| When_no_cycle

type rules = { ready : (claim list list -> claim list -> bool);
               admissible : (claim list -> bool); places_at_enqueue : 
               bool; children_checked : bool; revives : revival }

(** val plain_ready : claim list list -> claim list -> bool **)

let plain_ready bs cs =
  forallb (fun b -> negb (clash b cs)) bs

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

(** val remove_edge : int -> edge list -> edge list **)

let remove_edge i es =
  app (firstn i es) (skipn (Stdlib.Int.succ i) es)

(** val waited_for : world -> int -> bool **)

let waited_for w j =
  existsb (fun k -> existsb (fun e -> (=) e.to0 j) (w.jobs k).open0)
    (seq 0 w.count)

(** val known : world -> edge list -> bool **)

let known w es =
  forallb (fun e -> Nat.ltb e.to0 w.count) es

(** val may_revive : rules -> world -> int -> bool **)

let may_revive r w j =
  match r.revives with
  | Always -> true
  | When_none_waits -> negb (waited_for w j)
  | When_no_cycle -> closes_no_cycle w j (w.jobs j).needs

(** val becomes :
    rules -> world -> int -> transition -> (((job_state * edge
    list) * int) * place_change) option **)

let becomes r w j d =
  let x = w.jobs j in
  (match x.state with
   | Scheduled ->
     (match d with
      | Due -> Some (((Deferred, x.open0), x.tries), Keeps)
      | Resolve i ->
        (match nth_error x.open0 i with
         | Some e ->
           (match effect_of e (w.jobs e.to0).state with
            | Wait -> None
            | Drop ->
              Some (((x.state, (remove_edge i x.open0)), x.tries), Keeps)
            | Cancels -> Some (((Canceled, []), x.tries), Leaves))
         | None -> None)
      | Cancel -> Some (((Canceled, []), x.tries), Leaves)
      | _ -> None)
   | Deferred ->
     (match d with
      | Resolve i ->
        (match nth_error x.open0 i with
         | Some e ->
           (match effect_of e (w.jobs e.to0).state with
            | Wait -> None
            | Drop ->
              Some (((x.state, (remove_edge i x.open0)), x.tries), Keeps)
            | Cancels -> Some (((Canceled, []), x.tries), Leaves))
         | None -> None)
      | Place ->
        (match x.open0 with
         | [] ->
           Some (((Queued, []), x.tries),
             (if placed w j then Keeps else Joins))
         | _ :: _ -> None)
      | Cancel -> Some (((Canceled, []), x.tries), Leaves)
      | _ -> None)
   | Parent ->
     (match d with
      | Resolve i ->
        (match nth_error x.open0 i with
         | Some e ->
           (match effect_of e (w.jobs e.to0).state with
            | Wait -> None
            | Drop ->
              Some (((x.state, (remove_edge i x.open0)), x.tries), Keeps)
            | Cancels -> Some (((Canceled, []), x.tries), Leaves))
         | None -> None)
      | Close well ->
        (match x.open0 with
         | [] ->
           Some ((((if well then Finished else Failed), []), x.tries), Keeps)
         | _ :: _ -> None)
      | Cancel -> Some (((Canceled, []), x.tries), Leaves)
      | _ -> None)
   | Queued ->
     (match d with
      | Start ->
        if r.ready (claims_before w j) x.claims
        then Some (((Started, []), x.tries), Keeps)
        else None
      | Cancel -> Some (((Canceled, []), x.tries), Leaves)
      | _ -> None)
   | Backing ->
     (match d with
      | Due -> Some (((Queued, []), x.tries), Keeps)
      | Put_off -> Some (((Scheduled, []), x.tries), Leaves)
      | Cancel -> Some (((Canceled, []), x.tries), Leaves)
      | _ -> None)
   | Started ->
     (match d with
      | Finish -> Some (((Finished, []), x.tries), Leaves)
      | Fail keep ->
        Some (((Failed, []), x.tries), (if keep then Keeps else Leaves))
      | Stop -> Some (((Canceled, []), x.tries), Leaves)
      | Again b ->
        ((fun fO fS n -> if n=0 then fO () else fS (n-1))
           (fun _ -> None)
           (fun n ->
           match b with
           | At_once -> Some (((Queued, []), n), Keeps)
           | On_its_place -> Some (((Backing, []), n), Keeps)
           | Off_its_place -> Some (((Scheduled, []), n), Leaves))
           x.tries)
      | Await es ->
        if (&&) (known w es)
             ((||) (negb r.children_checked) (closes_no_cycle w j es))
        then Some (((Parent, es), x.tries), Leaves)
        else None
      | Leave es ->
        ((fun fO fS n -> if n=0 then fO () else fS (n-1))
           (fun _ -> None)
           (fun n ->
           if (&&) (known w es)
                ((||) (negb r.children_checked) (closes_no_cycle w j es))
           then Some (((Deferred, es), n), Leaves)
           else None)
           x.tries)
      | _ -> None)
   | Finished ->
     (match d with
      | Prune ->
        if waited_for w j then None else Some (((Gone, []), x.tries), Leaves)
      | _ -> None)
   | Failed ->
     (match d with
      | Redrive n ->
        Some (((Queued, []), n), (if placed w j then Keeps else Joins))
      | Discard -> Some (((Canceled, []), x.tries), Leaves)
      | Free ->
        if placed w j then Some (((Failed, []), x.tries), Leaves) else None
      | Prune -> Some (((Gone, []), x.tries), Leaves)
      | _ -> None)
   | Canceled ->
     (match d with
      | Revive n ->
        if may_revive r w j
        then Some (((Deferred, x.needs), n),
               (if r.places_at_enqueue then Joins else Keeps))
        else None
      | Prune ->
        if waited_for w j then None else Some (((Gone, []), x.tries), Leaves)
      | _ -> None)
   | Gone -> None)

(** val line_after : int list -> int -> place_change -> int list **)

let line_after l j = function
| Keeps -> l
| Leaves -> without j l
| Joins -> app l (j :: [])

(** val changed :
    world -> int -> job_state -> edge list -> int -> place_change -> world **)

let changed w j c es n p =
  let x = w.jobs j in
  { jobs = (fun k ->
  if (=) k j
  then { state = c; claims = x.claims; needs = x.needs; open0 = es; tries =
         n }
  else w.jobs k); count = w.count; line = (line_after w.line j p) }

(** val act : rules -> world -> event -> world option **)

let act r w = function
| Submit (cs, later, es, n) ->
  if (&&) (r.admissible cs) (known w es)
  then let j = w.count in
       Some { jobs = (fun k ->
       if (=) k j
       then { state = (if later then Scheduled else Deferred); claims = cs;
              needs = es; open0 = es; tries = n }
       else w.jobs k); count = (Stdlib.Int.succ j); line =
       (if (&&) r.places_at_enqueue (negb later)
        then app w.line (j :: [])
        else w.line) }
  else None
| At (j, d) ->
  (match becomes r w j d with
   | Some p0 ->
     let (p1, p) = p0 in
     let (p2, n) = p1 in let (c, es) = p2 in Some (changed w j c es n p)
   | None -> None)

(** val revived_in_turn : rules **)

let revived_in_turn =
  { ready = plain_ready; admissible = (fun _ -> true); places_at_enqueue =
    false; children_checked = true; revives = When_none_waits }

(** val is_in : int list -> int -> bool **)

let is_in l k =
  existsb ((=) k) l

(** val sort :
    (int -> int list) -> int -> int list -> int list -> int list * int list **)

let rec sort deps n todo done0 =
  (fun fO fS n -> if n=0 then fO () else fS (n-1))
    (fun _ -> (todo, done0))
    (fun n' ->
    match find (fun k -> forallb (is_in done0) (deps k)) todo with
    | Some k -> sort deps n' (without k todo) (app done0 (k :: []))
    | None -> (todo, done0))
    n

(** val in_order : (int -> int list) -> int list -> int list option **)

let in_order deps keys =
  let (l, done0) = sort deps (length keys) keys [] in
  (match l with
   | [] -> Some done0
   | _ :: _ -> None)
