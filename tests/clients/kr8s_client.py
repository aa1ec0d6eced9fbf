"""kr8s on every type: python3 kr8s_client.py KUBECONFIG OBJECTS

Proves, for each object of the file (a JSON list), that kr8s finds its type by discovery, and that create, merge patch, a
patch of an old version (409), labels, delete and a watch from the creation on do what kr8s expects. Then: JSON patches,
scaling, waiting for a condition, selectors, and the version and identity that the server tells.
"""

import json
import sys

import kr8s
from kr8s.objects import ConfigMap, Pod, ReplicationController, get_class, new_class


def class_of(api, body):
    """kr8s's own class of a type, or one that is made from discovery."""
    try:
        known = get_class(body["kind"], body["apiVersion"])
        if known.version == body["apiVersion"] and known.kind == body["kind"]:
            return known
    except KeyError:
        pass
    [found] = [r for r in api.api_resources() if (r["kind"], r["version"]) == (body["kind"], body["apiVersion"])]
    return new_class(
        body["kind"], body["apiVersion"], plural=found["name"], namespaced=found["namespaced"]
    )


def every_type(api, objects):
    for body in objects:
        kind = class_of(api, body)
        thing = kind(body, api=api)
        thing.create()
        created = thing.raw.to_dict()
        thing.patch({"metadata": {"labels": {"changed": "yes"}}})
        assert thing.labels["changed"] == "yes", thing.raw
        stale = {"resourceVersion": created["metadata"]["resourceVersion"], "labels": {"changed": "no"}}
        assert code(lambda: thing.patch({"metadata": stale})) == 409, body
        thing.label(again="yes")
        thing.delete()

        seen = []
        for event, changed in kind(created, api=api).watch():
            seen.append(event)
            assert changed.metadata.uid == created["metadata"]["uid"], changed
            if event == "DELETED":
                break
        assert len(seen) >= 3 and set(seen[:-1]) == {"MODIFIED"}, (body["kind"], seen)
        assert not kind(created, api=api).exists(), body


def single_things(api, namespace):
    template = {"metadata": {"labels": {"of": "scaled"}}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    template["spec"]["schedulingGates"] = [{"name": "example.com/never"}]
    spec = {"replicas": 0, "template": template}
    scaled = ReplicationController({"metadata": {"name": "scaled", "namespace": namespace}, "spec": spec}, api=api)
    scaled.create()
    scaled.scale(2)
    assert scaled.replicas == 2
    scaled.wait("jsonpath='{.status.replicas}'=2", timeout=30)
    pods = list(api.get("pods", namespace=namespace, label_selector={"of": "scaled"}))
    assert len(pods) == 2 and all(isinstance(pod, Pod) for pod in pods), pods
    pods[0].wait("condition=PodScheduled=false", timeout=30)
    assert [p.name for p in api.get("pods", namespace=namespace, field_selector=f"metadata.name={pods[1].name}")] == [
        pods[1].name
    ]
    scaled.delete(propagation_policy="Foreground")
    for pod in pods:
        pod.wait("delete", timeout=30)

    mapped = ConfigMap({"metadata": {"name": "mapped", "namespace": namespace}, "data": {"a": "1"}}, api=api)
    mapped.create()
    mapped.patch([{"op": "add", "path": "/data/b", "value": "2"}], type="json")
    assert mapped.data == {"a": "1", "b": "2"}, mapped.data
    assert code(lambda: mapped.patch([{"op": "test", "path": "/data/b", "value": "3"}], type="json")) == 422
    assert code(mapped.create) == 409
    mapped.delete()
    assert api.version()["minor"] == "36"
    assert "v1" in list(api.api_versions())
    assert api.whoami()


def code(call):
    try:
        call()
    except kr8s.ServerError as error:
        return error.response.status_code
    return 200


def main():
    kubeconfig, objects = sys.argv[1], json.load(open(sys.argv[2], encoding="utf-8"))
    api = kr8s.api(kubeconfig=kubeconfig)
    every_type(api, objects)
    single_things(api, next(o["metadata"]["namespace"] for o in objects if "namespace" in o["metadata"]))
    print(f"{len(objects)} types")


main()
