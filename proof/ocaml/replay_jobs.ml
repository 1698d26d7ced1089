(* Reads events, a line each, and plays them on the proved machine. After an event that it refuses nothing is done until
   the next R.

   R                  begin anew
   S now |1.2! 3?|0:dwd    a job with these claims and edges; "later" if it has a time
   A 4 Start          a transition of job 4
   D                  print the world *)

open Jobs

let effect = function 'd' -> Drop | 'w' -> Wait | 'c' -> Cancels | c -> failwith (String.make 1 c)
let letter = function Drop -> "d" | Wait -> "w" | Cancels -> "c"
let is_drop c = c = 'd'

(* 3:dwd *)
let edge text =
  let at = String.index text ':' in
  { to0 = int_of_string (String.sub text 0 at); if_finished = is_drop text.[at + 1]; if_failed = effect text.[at + 2];
    if_canceled = is_drop text.[at + 3] }

let words text = List.filter (fun w -> w <> "") (String.split_on_char ' ' text)

(* 1.2! or 1? or ! for the root *)
let claim text =
  let n = String.length text - 1 in
  let path0 = List.map int_of_string (List.filter (fun w -> w <> "") (String.split_on_char '.' (String.sub text 0 n))) in
  { num = 0; job = 0; path0; shared = text.[n] = '?' }

let transition = function
  | "Due" :: _ -> Due | "Put_off" :: _ -> Put_off | "Place" :: _ -> Place | "Start" :: _ -> Start
  | "Finish" :: _ -> Finish | "Stop" :: _ -> Stop | "Cancel" :: _ -> Cancel | "Discard" :: _ -> Discard
  | "Free" :: _ -> Free | "Prune" :: _ -> Prune
  | "Resolve" :: i :: _ -> Resolve (int_of_string i)
  | "Fail" :: keep :: _ -> Fail (keep = "keep")
  | "Again" :: "now" :: _ -> Again At_once
  | "Again" :: "on" :: _ -> Again On_its_place
  | "Again" :: "off" :: _ -> Again Off_its_place
  | "Await" :: es -> Await (List.map edge es)
  | "Leave" :: es -> Leave (List.map edge es)
  | "Close" :: well :: _ -> Close (well = "well")
  | "Redrive" :: _ -> Redrive 1000
  | "Revive" :: _ -> Revive 1000
  | _ -> failwith "transition"

let event line =
  match words line with
  | "S" :: _ -> (
      match String.split_on_char '|' line with
      | [ head; claims; edges ] ->
          Submit (List.map claim (words claims), words head = [ "S"; "later" ], List.map edge (words edges), 1000)
      | _ -> failwith line)
  | "A" :: j :: d -> At (int_of_string j, transition d)
  | _ -> failwith line

let name = function
  | Scheduled -> "Scheduled" | Deferred -> "Deferred" | Parent -> "Parent" | Queued -> "Queued" | Backing -> "Backing"
  | Started -> "Started" | Finished -> "Finished" | Failed -> "Failed" | Canceled -> "Canceled" | Gone -> "Gone"

let show w =
  let one k =
    let x = w.jobs k in
    let edge e =
      Printf.sprintf " %d:%s%s%s" e.to0 (if e.if_finished then "d" else "c") (letter e.if_failed)
        (if e.if_canceled then "d" else "c") in
    if x.state = Gone then "" else Printf.sprintf "%d %s%s; " k (name x.state) (String.concat "" (List.map edge x.open0)) in
  String.concat "" (List.init w.count one) ^ "line" ^ String.concat "" (List.map (Printf.sprintf " %d") w.line)

(* The same world with its jobs in an array: a chain of closures would grow with every event. *)
let flat w =
  let jobs = Array.init w.count w.jobs in
  { w with jobs = (fun k -> if k < Array.length jobs then jobs.(k) else empty.jobs 0) }

let () =
  let world = ref (Some empty) in
  try
    while true do
      let line = input_line stdin in
      match line, !world with
      | "R", _ -> world := Some empty; print_endline "R"
      | _, None -> ()
      | "D", Some w -> print_endline (show w)
      | _, Some w -> (
          match act revived_in_turn w (event line) with
          | Some w' -> world := Some (flat w')
          | None -> print_endline ("refused: " ^ line); world := None)
    done
  with End_of_file -> ()
