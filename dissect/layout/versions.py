"""Tables of protocols with versions: entries present from one version up to another."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from .types import Array, Choice, Entry, Field, Group, Optional, Repeat, Since, Sized, Type


def at(entries: Sequence[Entry], version: int, marks: set[int]) -> tuple[Entry, ...]:
    """Return the entries of a version; add the versions at which they change to `marks`. Parts without `Since` stay the same
    objects."""
    found: list[Entry] = []
    for entry in entries:
        match entry:
            case Since(first=first, until=until, fields=fields):
                marks |= {first, until}
                if first <= version < until:
                    found += at(fields, version, marks)
            case Field(type=kind):
                chosen = _type_at(kind, version, marks)
                found.append(entry if chosen is kind else replace(entry, type=chosen))
            case Optional(fields=fields):
                inner = at(fields, version, marks)
                found.append(entry if _same(inner, fields) else Optional(*inner))
            case Choice():
                choice = _type_at(entry, version, marks)
                assert isinstance(choice, Choice)
                found.append(choice)
    return tuple(found)


def _type_at(kind: Type, version: int, marks: set[int]) -> Type:
    """Return a type, with its components, as of one version."""
    match kind:
        case Group(fields=fields):
            inner = at(fields, version, marks)
            return kind if _same(inner, fields) else Group(*inner)
        case Array(item=item) | Repeat(item=item) | Sized(content=item):
            chosen = _type_at(item, version, marks)
            if chosen is item:
                return kind
            match kind:
                case Array(count=count):
                    return Array(chosen, count)
                case Sized(length=length):
                    return Sized(length, chosen)
            return Repeat(chosen)
        case Choice(discriminator=asked, alternatives=alternatives, otherwise=otherwise):
            branches = {key: _branch_at(one, version, marks) for key, one in alternatives.items()}
            last = None if otherwise is None else _branch_at(otherwise, version, marks)
            same = last is otherwise and all(one is alternatives[key] for key, one in branches.items())
            return kind if same else Choice(asked, branches, last)  # type: ignore[arg-type]
    return kind


def _branch_at(branch: Type | tuple[Entry, ...], version: int, marks: set[int]) -> Type | tuple[Entry, ...]:
    if not isinstance(branch, tuple):
        return _type_at(branch, version, marks)
    inner = at(branch, version, marks)
    return branch if _same(inner, branch) else inner


def _same(found: tuple[Entry, ...], entries: Sequence[Entry]) -> bool:
    """Return whether these are the entries of the table themselves."""
    return len(found) == len(entries) and all(one is entry for one, entry in zip(found, entries, strict=True))
