"""What went wrong, in words: findings with a rule, a severity, evidence, one sentence of cause and one of advice.

One file for each family of protocols (`rabbitmq.py`), `tcp.py`, `tls.py`, `common.py` for what all protocols have (requests without a
response, damaged frames, handshakes that stop), and `across.py` for what only several conversations show. A family is optional for a
protocol. It is one `Family`: the steps of its handshake, what a refusal means, the state of a conversation, and a table of rules.

To add a rule, write a line of the table

    Rule("virtual-host-refused", ERROR, "Open", _vhost, "Create the virtual host, or give the user permissions in it.", REFUSED)

and the function it names, in the same file. The function gets each message `Open` that is `REFUSED` (without this also the requests: see
`message.kind`), or `ANY` message, a `GAP`, an `EXCHANGE`, the end: `CLOSED`, and for an interface the time: `LIVE`. It returns the cause
as one sentence without a full stop, or None:

    def _vhost(context: ConversationContext, message: Message) -> str | None:
        return f"the server refuses the virtual host {quoted(context.state.vhost)}"

Add a case to `CASES` in the family's test, a name with a function that makes a `Connection` (`tests/diagnose/talks.py`), the rule and its
severity, and one beside it that finds nothing. `tests/diagnose/test_rules.py` checks that there is a case, and `python -m tests.support`
writes the rule into `README.md`.

The evidence is the message and its request. Return a `FindingDraft` instead of the text for other evidence, another severity, or the `key`
by which equal findings are reported once for each conversation. `context` (`rules.ConversationContext`) has the request
(`context.request_of(message)`), the last message of each side, the progress of the handshake, and the family's own `state`, which its
`follow` updates after the rules, within bounds: it does not contain the message at hand yet. What a rule has to remember is a field of the
family's state and a function in its `_FOLLOW`. A rule uses only the records of its conversation, in their order, so that the size of
batches does not matter. Where a server keeps something across connections, such as the offset of a consumer, `context.share` passes steps
of plain data to `Family.shared`, which sees those of all connections to the server in the order of their times.

A rule about several conversations is a line of `across.ACROSS`. Each conversation reports what it knows as a `fact`, which is not a
finding, and the rule combines the facts of all at the end, so that findings are the same for any split of a capture, and in Spark.

To add a protocol, write its file with a `FAMILY`, and add that to `FAMILIES` in `registry.py`.
"""
