"""TestEventCorrelator: scenario, seconds between two events, the events (reason, message, namespace, name, part of the object),
count and message of the last one as it is sent, or `skipped`. Upstream's clock goes on at each look at it, of which there are
three for each event. TestEventSpamFilter: of the filter as kubelet has it: scenario, burst, events, `skipped` or `sent`.
"""
from ..tests import dictionaries, get, Test

SOURCE = "staging/src/k8s.io/client-go/tools/record/events_cache_test.go"
LOOKS = 3


def event(found):
    involved = get(found, "InvolvedObject")
    return [get(found, "Reason"), get(found, "Message")] + [get(involved, name) for name in ("Namespace", "Name", "FieldPath")]


def rows():
    test = Test(SOURCE, beside=["events_cache.go"])
    for name, row in dictionaries(test.table("TestEventCorrelator", "scenario")).items():
        events = [event(found) for found in [*(row["previousEvents"] or []), row["newEvent"]]]
        expected = ["skipped"] if row["expectedSkip"] else [get(row["expectedEvent"], "Count"), get(row["expectedEvent"], "Message")]
        yield ["TestEventCorrelator", name, row["intervalSeconds"] * LOOKS, events, *expected]
    scope = test.scope("TestEventSpamFilter", "testCases")
    for name, row in dictionaries(scope.find("testCases")).items():
        if row["spamKeyFunc"] is None:
            events = [event(scope.find("originalEvent")), event(row["newEvent"])]
            yield ["TestEventSpamFilter", name, scope.find("burstSize"), events, "skipped" if row["expectedSkip"] else "sent"]
