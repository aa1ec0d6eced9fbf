"""lightkube on every type: python3 lightkube_client.py KUBECONFIG OBJECTS

Proves, for each object of the file (a JSON list), that what the server sends fits lightkube's generated classes, and that
create, patch, an update of an old version (409), server-side apply with a conflict, delete and a watch from before all of
them do what lightkube expects. Then: strategic patches, JSON patches, pages, a scale subresource, and a collection that
is deleted.
"""

import json
import sys

from lightkube import ApiError, Client, KubeConfig
from lightkube.codecs import from_dict
from lightkube.core.resource import NamespacedResource
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.autoscaling_v1 import ScaleSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, ReplicationController
from lightkube.types import PatchType


def every_type(client, objects):
    for body in objects:
        thing = from_dict(body)
        kind, name, namespace = type(thing), thing.metadata.name, thing.metadata.namespace
        where = {"namespace": namespace} if issubclass(kind, NamespacedResource) else {}
        listed = client.list(kind, fields={"metadata.name": name}, **where)
        assert list(listed) == []
        before = listed.resourceVersion

        created = client.create(thing)
        assert created.metadata.uid, body
        change = {"metadata": {"labels": {"changed": "yes"}}}
        patched = client.patch(kind, name, change, patch_type=PatchType.MERGE, **where)
        assert patched.metadata.labels["changed"] == "yes", patched
        created.metadata.labels = {"changed": "no"}
        assert code(lambda: client.replace(created)) == 409, body
        mine = {"apiVersion": body["apiVersion"], "kind": body["kind"]}
        mine["metadata"] = {"name": name, "labels": {"changed": "applied"}}
        as_other = {"patch_type": PatchType.APPLY, "field_manager": "other", **where}
        assert code(lambda: client.patch(kind, name, mine, **as_other)) == 409, body
        applied = client.patch(kind, name, mine, force=True, **as_other)
        assert applied.metadata.labels["changed"] == "applied", applied
        client.delete(kind, name, **where)

        seen = []
        for event, changed in client.watch(kind, fields={"metadata.name": name}, resource_version=before, **where):
            seen.append(event)
            assert changed.metadata.uid == created.metadata.uid, changed
            if event == "DELETED":
                break
        assert seen[0] == "ADDED" and seen[-1] == "DELETED" and set(seen[1:-1]) == {"MODIFIED"}, (body["kind"], seen)
        assert code(lambda: client.get(kind, name, **where)) == 404, body


def single_things(client, namespace):
    def apply(value, manager, **options):
        mapped = ConfigMap(metadata=ObjectMeta(name="applied", namespace=namespace), data={"key": value})
        return client.apply(mapped, field_manager=manager, **options)

    assert apply("1", "one").metadata.managedFields[0].manager == "one"
    assert code(lambda: apply("2", "two")) == 409
    assert apply("2", "two", force=True).data == {"key": "2"}
    patched = client.patch(ConfigMap, "applied", {"data": {"more": "3"}}, namespace=namespace)
    assert patched.data == {"key": "2", "more": "3"}, patched
    removal = [{"op": "remove", "path": "/data/more"}]
    patched = client.patch(ConfigMap, "applied", removal, namespace=namespace, patch_type=PatchType.JSON)
    assert patched.data == {"key": "2"}, patched

    for number in range(7):
        client.create(ConfigMap(metadata=ObjectMeta(generateName="page-", namespace=namespace, labels={"of": "pages"})))
    pages = client.list(ConfigMap, namespace=namespace, labels={"of": "pages"}, chunk_size=3)
    assert len({page.metadata.name for page in pages}) == 7
    client.deletecollection(ConfigMap, namespace=namespace)
    assert list(client.list(ConfigMap, namespace=namespace, labels={"of": "pages"})) == []

    spec = {"replicas": 0, "selector": {"of": "scaled"}, "template": {"metadata": {"labels": {"of": "scaled"}}}}
    spec["template"]["spec"] = {"containers": [{"name": "main", "image": "none"}]}
    client.create(
        from_dict(
            {
                "apiVersion": "v1",
                "kind": "ReplicationController",
                "metadata": {"name": "scaled", "namespace": namespace},
                "spec": spec,
            }
        )
    )
    scale = client.get(ReplicationController.Scale, "scaled", namespace=namespace)
    assert not scale.spec.replicas and scale.status.selector == "of=scaled", scale
    scale.spec = ScaleSpec(replicas=0)
    # Its controller may have written the status.
    scale.metadata.resourceVersion = None
    client.replace(scale, "scaled", namespace=namespace)
    client.delete(ReplicationController, "scaled", namespace=namespace)


def code(call):
    try:
        call()
    except ApiError as error:
        return error.status.code
    return 200


def main():
    kubeconfig, objects = sys.argv[1], json.load(open(sys.argv[2], encoding="utf-8"))
    # lightkube has no classes of versions that Kubernetes has removed.
    known = [body for body in objects if body["apiVersion"] != "autoscaling/v2beta1"]
    for body in known:
        group, version = body["apiVersion"].rpartition("/")[::2]
        if group == "clients.example.com":
            create_namespaced_resource(group, version, body["kind"], "samples")
    with Client(config=KubeConfig.from_file(kubeconfig), trust_env=False) as client:
        every_type(client, known)
        single_things(client, next(o["metadata"]["namespace"] for o in objects if "namespace" in o["metadata"]))
    print(f"{len(objects)} types")


main()
