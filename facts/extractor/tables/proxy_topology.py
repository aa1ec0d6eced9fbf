"""Case, node, zone, policy (i: internal Local, e: external Local, x: can be reached from outside), endpoints (address, ready,
serving, terminating, local, hints of zones, hints of nodes), then those for policy Cluster, for policy Local, those that can be
reached, and whether there are any. Cases without PreferSameTrafficDistribution, whose hints are not of nodes, are as with it.
"""
from ..tests import dictionaries, get, Test

SOURCE = "pkg/proxy/topology_test.go"
ZONE = "topology.kubernetes.io/zone"


def rows():
    test = Test(SOURCE, beside=None)
    for row in dictionaries(test.table("TestCategorizeEndpoints", "testCases")):
        endpoints = [
            [get(e, "endpoint"), *(get(e, name) for name in ("ready", "serving", "terminating", "isLocal")), *(sorted(get(e, name) or []) for name in ("zoneHints", "nodeHints"))]
            for e in row["endpoints"] or []
        ]
        if not row["preferSameEnabled"] and any(endpoint[6] for endpoint in endpoints):
            continue
        service = row["serviceInfo"]
        policy = "".join(letter for letter, name in zip("iex", ("internalPolicyLocal", "externalPolicyLocal", "nodePort")) if get(service, name))
        cluster, local, everything = (sorted(row[name] or []) for name in ("clusterEndpoints", "localEndpoints", "allEndpoints"))
        everything = cluster if cluster and not local else local if local and not cluster else everything
        zone = (row["nodeLabels"] or {}).get(ZONE, "")
        yield ["TestCategorizeEndpoints", row["name"], row["nodeName"], zone, policy, endpoints, cluster, local, everything, bool(everything) or row["onlyRemoteEndpoints"]]
