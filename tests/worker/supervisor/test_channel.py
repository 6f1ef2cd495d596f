"""Messages arrive whole and in order, also through an end that is not read for a while."""

import socket

from leasemill.worker.supervisor.channel import Channel, Message


def pair() -> tuple[Channel, Channel]:
    ours, theirs = socket.socketpair()
    return Channel(ours, send_waits=False), Channel(theirs, send_waits=True)


def test_messages_arrive_in_order_and_the_end_of_the_other_side_is_noticed() -> None:
    ours, theirs = pair()
    ours.send({"do": "death", "cause": "exit status 137\n"})
    ours.send({"do": "run"})
    assert theirs.receive() == [{"do": "death", "cause": "exit status 137\n"}, {"do": "run"}]
    assert theirs.receive(waits=False) == []
    ours.close()
    assert theirs.receive() is None
    theirs.send({"is": "up"})  # nobody is there: dropped
    theirs.close()


def test_what_does_not_fit_is_kept_and_sent_later() -> None:
    ours, theirs = pair()
    sent = [{"do": "death", "number": number, "padding": "x" * 1_000} for number in range(2_000)]
    for message in sent:
        ours.send(message)
    received: list[Message] = []
    while len(received) < len(sent):
        received += theirs.receive() or []
        ours.flush()
    assert received == sent
    ours.close()
    theirs.close()


def test_a_long_message_of_a_process_that_has_ended_is_read_whole() -> None:
    ours, theirs = pair()
    message = {"is": "samples", "padding": "x" * 150_000}
    theirs.send(message)
    theirs.close()
    assert ours.receive(waits=False) == [message]
    assert ours.receive(waits=False) is None
    ours.close()
