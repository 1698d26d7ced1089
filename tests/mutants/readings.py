"""Mutants of reading: exactly, or not at all, and what handlers of a release know."""

from tests.mutants.gate import Catcher, Mutant, tests

CONVERTER, DIGEST = "handlers/conversion/converter.py", "handlers/conversion/digest.py"


def codec(words: str) -> Catcher:
    """Return the tests of the codec whose names hold some words."""
    return tests("tests/unit/test_codec.py", "-k", words)


def handler(words: str) -> Catcher:
    """Return the tests of handlers whose names hold some words."""
    return tests("tests/unit/test_handler.py", "-k", words)


def digest(words: str) -> Catcher:
    """Return the tests of digests whose names hold some words."""
    return tests("tests/unit/test_digest.py", "-k", words)


UNIONS, PYDANTIC = "handlers/conversion/unions.py", "handlers/conversion/models.py"
VALUES = tests("tests/property/test_values.py")
MODELS = tests("tests/unit/test_models.py", "-k", "come_back_as_another")
LATER = codec("of_a_later_release")

MUTANTS = (
    Mutant(
        name="A field that a class does not have is dropped",
        kind="worker",
        file=CONVERTER,
        old="        forbid_extra_keys=True, ",
        new="        ",
        caught_by=(LATER, tests("tests/integration/test_releases.py", "-k", "value_of_a_later_release")),
    ),
    Mutant(
        name="A member that an enum does not have fails its job",
        kind="worker",
        file=CONVERTER,
        old="        if type(value) in {type(member.value) for member in kind}:\n",
        new="        if False:\n",
        caught_by=(LATER,),
    ),
    Mutant(
        name="A flag drops the bits that it does not know",
        kind="worker",
        file=CONVERTER,
        old="(issubclass(kind, Flag) and found.value != value)",
        new="(issubclass(kind, Flag) and found.value > value)",
        caught_by=(codec("flag_that_drops"),),
    ),
    Mutant(
        name="A value of an enum is of any type that is equal",
        kind="worker",
        file=CONVERTER,
        old="type(found.value) is not type(value):\n        raise TypeError",
        new="type(found.value) is not type(value):\n        pass",
        caught_by=(codec("wrong_type"),),
    ),
    Mutant(
        name="A text is read as a number",
        kind="worker",
        file=CONVERTER,
        old="        if not isinstance(value, bool if kind is bool else kinds):\n            raise TypeError\n",
        new="        if not isinstance(value, bool if kind is bool else kinds):\n            return kind(value)\n",
        caught_by=(codec("wrong_type"),),
    ),
    Mutant(
        name="A wrong type hides what is of a later release",
        kind="worker",
        file="handlers/codec.py",
        old="if refusal is None or isinstance(found, UnknownToReleaseError):",
        new="if refusal is None:",
        caught_by=(codec("outweighs"),),
    ),
    Mutant(
        name="A literal that the signature lacks is run",
        kind="worker",
        file="handlers/handler.py",
        old="            if self._literals:\n",
        new="            if False:\n",
        caught_by=(handler("later_release"), tests("tests/integration/test_releases.py", "-k", "later_release")),
    ),
    Mutant(
        name="A wrong type hides a parameter of a later release",
        kind="worker",
        file="handlers/handler.py",
        old="                self._refuse_unknown(codec.loads(payload, {}))\n",
        new="",
        caught_by=(handler("later_release"),),
    ),
    Mutant(
        name="An upgrade that fails loses the job of a later release",
        kind="worker",
        file="handlers/handler.py",
        old="            if isinstance(misfit, UnknownToReleaseError):\n",
        new="            if False:\n",
        caught_by=(handler("upgrade_that_fails"),),
    ),
    Mutant(
        name="A process fails a job of a later release",
        kind="worker",
        file="worker/processes/child.py",
        old="            return end_of_unread(error)\n",
        new="            return end_of_error(error)\n",
        caught_by=(tests("tests/integration/test_processes.py", "-k", "later_release"),),
    ),
    Mutant(
        name="The order of a set is part of a digest",
        kind="worker",
        file=DIGEST,
        old="{','.join(sorted(map(_stable, value)))}",
        new="{','.join(map(_stable, value))}",
        caught_by=(digest("every_process"),),
    ),
    Mutant(
        name="Members of an enum are no part of a digest",
        kind="worker",
        file=DIGEST,
        old="    if issubclass(kind, Enum):\n",
        new="    if issubclass(kind, Enum):\n        return []\n    if issubclass(kind, Enum):\n",
        caught_by=(digest("other_values"),),
    ),
    Mutant(
        name="The code of an upgrade is no part of a digest",
        kind="worker",
        file=DIGEST,
        old="else _code(handler.upgrade)]",
        new="else True]",
        caught_by=(digest("upgrades"),),
    ),
    Mutant(
        name="A value that is read as another one is accepted",
        kind="api",
        file="handlers/codec.py",
        old="        if place is not None:\n            why =",
        new="        if False:\n            why =",
        caught_by=(MODELS, VALUES),
    ),
    Mutant(
        name="Members of a union that share a form are declared",
        kind="api",
        file=UNIONS,
        old="                if not _fits_beside(form, other):\n",
        new="                if False:\n",
        caught_by=(tests("tests/property/test_values.py", "-k", "refused_when_declared"), handler("cannot_travel")),
    ),
    Mutant(
        name="A text that is written as no date is taken for one",
        kind="api",
        file=UNIONS,
        old="return _GRAMMARS[self.texts].fullmatch(data) is not None",
        new="return True",
        caught_by=(VALUES,),
    ),
    Mutant(
        name="Values of an enum that are dates are told apart from dates",
        kind="api",
        file=UNIONS,
        old="            return not any(map(other.fits, self.values))\n",
        new="            return True\n",
        caught_by=(tests("tests/property/test_values.py", "-k", "refused_when_declared"),),
    ),
    Mutant(
        name="A text is read as a list of its letters",
        kind="api",
        file="handlers/conversion/arrays.py",
        old="        if not isinstance(value, _LISTS) or (fixed and len(value) != len(hooks)):\n",
        new="        if fixed and len(value) != len(hooks):\n",
        caught_by=(codec("wrong_type"),),
    ),
    Mutant(
        name="The order of a set is the order in which it is written",
        kind="api",
        file="handlers/conversion/arrays.py",
        old="return sorted(found, key=repr) if isinstance(value, _SETS) else found",
        new="return found",
        caught_by=(codec("equal_sets"),),
    ),
    Mutant(
        name="A model of pydantic drops the fields of a later release",
        kind="worker",
        file=PYDANTIC,
        old="        if unknown:\n",
        new="        if False:\n",
        caught_by=(tests("tests/unit/test_models.py", "-k", "later_release"),),
    ),
    Mutant(
        name="A class of pydantic that reads other fields itself is left none of them",
        kind="worker",
        file=PYDANTIC,
        old='    return any(each.info.mode in _EARLY for each in validators) or "__get',
        new='    return "__get',
        caught_by=(tests("tests/unit/test_models.py", "-k", "itself"),),
    ),
    Mutant(
        name="One branch that does not know a literal makes a value one of a later release",
        kind="worker",
        file=PYDANTIC,
        old="        all(_is_of_later(group",
        new="        any(_is_of_later(group",
        caught_by=(tests("tests/unit/test_models.py", "-k", "wrong_type"),),
    ),
    Mutant(
        name="One name that cannot be resolved takes all annotations along",
        kind="api",
        file="handlers/conversion/annotations.py",
        old="return {name: _one(target, name, hint) for name, hint in _as_written(target).items()}",
        new="return {name: Unresolved(text_of(hint)) for name, hint in _as_written(target).items()}",
        caught_by=(handler("leaves_the_others"),),
    ),
    Mutant(
        name="A result without a type fails its job after the work",
        kind="worker",
        file="handlers/handler.py",
        old="        if self._result_unresolved is not None:\n            self.is_open",
        new="        if False:\n            self.is_open",
        caught_by=(handler("before_any_work"),),
    ),
    Mutant(
        name="A name that is defined further down is never resolved",
        kind="api",
        file="handlers/handler.py",
        old="            self._take(resolved(self.function))\n",
        new="            pass\n",
        caught_by=(handler("further_down"),),
    ),
    Mutant(
        name="A datetime names a place by its text",
        kind="api",
        file="handlers/placement.py",
        old="    if issubclass(kind, (bool, datetime)):\n        return False\n",
        new="    if issubclass(kind, bool):\n        return False\n",
        caught_by=(handler("names_no_place_is_refused_when_declared"),),
    ),
    Mutant(
        name="A number of an enum names a place by the name of its member",
        kind="api",
        file="handlers/placement.py",
        old="return int.__repr__(value) if abs(value)",
        new="return repr(value) if abs(value)",
        caught_by=(handler("one_text_of_an_argument"),),
    ),
    Mutant(
        name="What a hook has written is read back before it is JSON",
        kind="api",
        file="handlers/codec.py",
        old="            text = decode_json(encode_json(written, bytes_max=bytes_max))\n",
        new="",
        caught_by=(codec("writes_a_tuple"),),
    ),
    Mutant(
        name="A variadic argument is not read by its annotation",
        kind="api",
        file="handlers/handler.py",
        old="    if parameter.kind not in _VARIADIC:\n        return annotation\n",
        new="    if parameter.kind not in _VARIADIC:\n        return annotation\n    return Any\n",
        caught_by=(handler("variadic_argument_travels"),),
    ),
    Mutant(
        name="The annotations of a partial function are lost",
        kind="api",
        file="handlers/conversion/annotations.py",
        old="        target = inspect.unwrap(target.func)\n",
        new="        break\n",
        caught_by=(handler("partial_function"),),
    ),
    Mutant(
        name="Each upgraded job leaves its annotations in the codec",
        kind="worker",
        file="handlers/handler.py",
        old="codec.dumps(upgraded, {}, ",
        new="codec.dumps(upgraded, dict.fromkeys(upgraded, Any), ",
        caught_by=(handler("leave_nothing_in_the_codec"),),
    ),
    Mutant(
        name="A refusal names the argument, and not the part of it",
        kind="api",
        file="handlers/conversion/checks.py",
        old='                break\n        else:\n            return f"{type(value)',
        new='        else:\n            return f"{type(value)',
        caught_by=(codec("part_that_cannot_be_written"),),
    ),
    Mutant(
        name="A model is refused for a field that is not to blame",
        kind="api",
        file=PYDANTIC,
        old="(is_unread or any(_is_named(key, found) for key in keys)):",
        new="(is_unread or any(True for _ in keys)):",
        caught_by=(tests("tests/unit/test_models.py", "-k", "not_to_blame"),),
    ),
)
