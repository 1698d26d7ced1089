"""Mutants of the door: what is checked there, what is said there, and what is not."""

from tests.mutants.gate import Mutant, tests

TEXTS = tests("tests/integration/test_door_texts.py", "-m", "not redis")
HANDLES = tests("tests/integration/test_door_handles.py", "-m", "not redis")
WITHHELD = tests("tests/integration/test_withheld.py")
ARGUMENTS = tests("tests/integration/test_door_arguments.py")
SECRETS = tests("tests/integration/test_cli_secrets.py")

MUTANTS = (
    Mutant(
        name="A namespace is what was handed in, and not what was checked",
        kind="door",
        file="backends/base.py",
        old='got {shown(text)}")\n    return text\n',
        new='got {shown(text)}")\n    return namespace\n',
        caught_by=(TEXTS,),
    ),
    Mutant(
        name="A reason of a cancellation is what was handed in, and not what was checked",
        kind="door",
        file="control.py",
        old='    reason = None if reason is None else check_name(reason, parameter="reason")\n',
        new='    _ = None if reason is None else check_name(reason, parameter="reason")\n',
        caught_by=(TEXTS,),
    ),
    Mutant(
        name="Places are known by the arguments, whatever these take themselves for",
        kind="door",
        file="handler.py",
        old="                if type(segment) is not str:\n                    break\n",
        new="                if not isinstance(segment, str):\n                    break\n",
        caught_by=(TEXTS,),
    ),
    Mutant(
        name="A handle of another store is taken for one of this",
        kind="door",
        file="handles.py",
        old="            if _identity(mine.backend) != _identity(desk.backend):\n",
        new="            if type(mine.backend) is not type(desk.backend):\n",
        caught_by=(HANDLES,),
    ),
    Mutant(
        name="The id of a handle to be canceled is taken wherever it is from",
        kind="door",
        file="control.py",
        old="        return job.id_for(self, parameter) if isinstance(job, JobHandle) else check_id(job)\n",
        new="        return job.id if isinstance(job, JobHandle) else check_id(job)\n",
        caught_by=(HANDLES,),
    ),
    Mutant(
        name="A job waits for children of another store",
        kind="door",
        file="outcomes.py",
        old="                context.check_children(answer)\n",
        new="                pass\n",
        caught_by=(HANDLES,),
    ),
    Mutant(
        name="What a redaction that fails was given is in the traceback that is logged",
        kind="door",
        file="outcomes.py",
        old='            logger.error("redact failed", extra=extra)  # noqa: TRY400\n',
        new='            logger.exception("redact failed", extra=extra)\n',
        caught_by=(WITHHELD,),
    ),
    Mutant(
        name="A redaction that raises no Exception leaves the job to run for ever",
        kind="door",
        file="outcomes.py",
        old="        except BaseException as error:  # noqa: BLE001 - whatever a hook raises, the attempt ends\n",
        new="        except Exception as error:  # noqa: BLE001 - whatever a hook raises, the attempt ends\n",
        caught_by=(tests("tests/integration/test_withheld.py", "-k", "no_log and Odd-raise"),),
    ),
    Mutant(
        name="A listener that raises no Exception is told nothing more",
        kind="door",
        file="listening.py",
        old="                except BaseException as error:\n                    task",
        new="                except Exception as error:\n                    task",
        caught_by=(WITHHELD,),
    ),
    Mutant(
        name="An iterable is read to its end before it is counted",
        kind="door",
        file="checks.py",
        old="    items = list(islice(value, most + 1))\n",
        new="    items = list(value)\n",
        caught_by=(ARGUMENTS,),
    ),
    Mutant(
        name="A message holds whatever it quotes",
        kind="door",
        file="errors.py",
        old="        return printable(super().__str__())\n",
        new="        return super().__str__()\n",
        caught_by=(ARGUMENTS,),
    ),
    Mutant(
        name="A text is taken for the path of its letters",
        kind="door",
        file="hint.py",
        old="    return key_of(parse_path(path))\n",
        new="    return key_of(tuple(path))\n",
        caught_by=(ARGUMENTS,),
    ),
    Mutant(
        name="A value is written out whole before it is cut",
        kind="door",
        file="errors.py",
        old="            if len(text) > VALUE_LENGTH_MAX:\n                break\n",
        new="",
        caught_by=(tests("tests/unit/test_errors.py"),),
    ),
    Mutant(
        name="A value of any class is asked for its text",
        kind="door",
        file="errors.py",
        old='    else:\n        yield f"<{kind.__name__}>"\n',
        new="    else:\n        yield repr(value)\n",
        caught_by=(tests("tests/unit/test_errors.py"),),
    ),
    Mutant(
        name="The parser's own words are printed as they are",
        kind="door",
        file="cli/said.py",
        old="        told = _BadUsage(said(message) + (HINT",
        new="        told = _BadUsage(message + (HINT",
        caught_by=(SECRETS,),
    ),
    Mutant(
        name="What is read behind a password as a place is shown",
        kind="door",
        file="cli/said.py",
        old='    if "@" in options:\n        return f"{scheme}:{slashes}***"\n',
        new="",
        caught_by=(SECRETS,),
    ),
    Mutant(
        name="A limit that was made by hand may be at any path",
        kind="door",
        file="limits.py",
        old="            parse_path(self.path)\n            if type(self.path) is not tuple or any(",
        new="            if type(self.path) is not tuple or all(",
        caught_by=(tests("tests/unit/test_values_by_hand.py"),),
    ),
)
