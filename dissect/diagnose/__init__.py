"""What went wrong, in words: findings with a rule, a severity, evidence, one sentence of cause and one of advice.

One file a family of protocols (`rabbitmq.py`), and `common.py` for TCP, TLS and what all protocols have: requests without an answer, late
and damaged ones, refusals, ends without a goodbye, handshakes that are not finished. A family is optional for a protocol; it is one
`Family`: the steps of its handshake, what a refusal means, what is remembered of a conversation, and a table of rules.

To add a rule, write a line of the table

    Rule("vhost-refused", ERROR, "Open", _vhost, "Create the virtual host, or give the user permissions in it.")

and the function it names, which is told of every message `Open` (or of `ANY` message, a `GAP`, an `EXCHANGE`, the end: `CLOSED`, and
of an interface now and then: `LIVE`) and returns the cause as one sentence without a full stop, or None:

    def _vhost(context: ConversationContext, message: Message) -> str | None:
        if message.outcome != "refused":
            return None
        return f"the server does not let the user into the virtual host {quoted(context.memo.vhost)}"

The evidence is the message and its request; a `FindingDraft` instead of the text says other evidence, another severity, or the `key` by
which what comes again is told once a conversation. `context` (`rules.ConversationContext`) has the request (`context.request_of(message)`),
the last message of each side, how far the handshake got, and the family's own `memo`, which its `follow` keeps: after the rules, and never
more than a bounded amount of it. A rule looks at records of its conversation in their order, and at what `follow` put into
`context.shared` of a server, in the order of all records, and at nothing else: then batches never show.

What only several conversations show is a rule of `common.ACROSS`. Each conversation reports what it knows as a `fact`, which is no finding,
and the rule puts the facts of all together at the end: then findings hold for any split of a capture, and on Spark.

To add a protocol, write its file with a `FAMILY` and add that to `FAMILIES` in `registry.py`.
"""
