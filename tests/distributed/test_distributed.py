"""Payloads between ranks: gloo on the CPU, each program on every rank."""

from typing import Any

import pytest
import rank_programs as programs
from rank_programs import run_ranks

from tensorpack.distributed.channel import BOUND


@pytest.fixture(scope="module")
def two() -> dict[str, list[Any]]:
    """What the programs found on two ranks."""
    found = (
        programs.every_leaf,
        programs.classes_at_random,
        programs.many_layouts,
        programs.bad_values,
        programs.other_classes,
        programs.bad_device,
        programs.no_group,
    )
    return run_ranks(found, 2)


@pytest.fixture(scope="module")
def four() -> dict[str, list[Any]]:
    """What the programs found on four ranks."""
    found = (
        programs.every_leaf,
        programs.sends,
        programs.subgroups,
        programs.first_dies,
    )
    return run_ranks(found, 4)


Found = dict[str, list[Any]]


def test_broadcast_gives_every_rank_the_same_value(two: Found, four: Found) -> None:
    """Every dtype, layout and role arrives as its role says, from any rank."""
    assert [None, None] == two["every_leaf"]
    assert [None] * 4 == four["every_leaf"]


def test_send_and_recv_pass_a_value_on(four: Found) -> None:
    """A pipeline of ranks hands a payload around."""
    assert [None] * 4 == four["sends"]


def test_groups_inside_the_world_do_not_meet(four: Found) -> None:
    """Ranks are global; headers may go over a group of their own."""
    assert [None] * 4 == four["subgroups"]


def test_random_classes_arrive_equal(two: Found) -> None:
    """500 classes with every form of field, against a walk that knows no plan."""
    assert [500, 500] == two["classes_at_random"]


def test_layout_memories_stay_bounded_and_in_step(two: Found) -> None:
    """What the sender forgets the receiver forgets with the same message."""
    sender, receiver = two["many_layouts"]

    assert BOUND == sender[0]
    assert BOUND == receiver[1]


def test_every_rank_raises_for_a_value_that_cannot_travel(two: Found) -> None:
    """The source says why in its header; the group goes on to be usable."""
    source, other = two["bad_values"]

    assert len(source) == len(other) == 7
    for own, told in zip(source, other, strict=True):
        assert "nothing was raised" != own
        why = own.removesuffix(".")
        assert f"RankError: `broadcast`: rank 0 could not send: {why}." == told


def test_classes_that_differ_are_told_by_name(two: Found) -> None:
    """Another order, another type, or no such class: the receiver says which."""
    source, other = two["other_classes"]
    differs = (
        "RankError: the class `rank_programs.Version` of this rank has other fields "
        "than the sender's. Run the same version of the class on every rank."
    )
    missing = "RankError: this rank does not have what the sender has: "

    assert ["nothing was raised"] * 4 == source
    assert [differs, differs] == other[:2]
    assert other[2].startswith(missing)
    assert "Version" in other[2]
    assert "nothing was raised" == other[3]


def test_wrong_device_on_one_rank_harms_no_other(two: Found) -> None:
    """The rank takes part to the end and raises then."""
    (fine, first), (error, second) = two["bad_device"]

    assert "nothing was raised" == fine
    assert "nothing was raised" != error
    assert [1, 1] == first == second


def test_rank_that_ends_leaves_the_others_with_an_error(four: Found) -> None:
    """Who waits for it is told by the group, and nothing half built is given."""
    gone, *others = four["first_dies"]

    assert "gone" == gone
    assert all(error.startswith("RuntimeError: ") for error in others), others


def test_call_without_a_group_says_so(two: Found) -> None:
    """No collective is begun."""
    expected = (
        "RankError: `broadcast`: there is no process group. Call "
        "`torch.distributed.init_process_group` first."
    )

    assert [expected, expected] == two["no_group"]
