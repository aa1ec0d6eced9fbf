"""The official Python client (package kubernetes) on every type: python3 official_client.py KUBECONFIG OBJECTS

Proves, for each object of the file (a JSON list), that the dynamic client finds its type by discovery, and that create,
merge patch, an update of an old version (409), delete and a watch from before all of them do what the client expects.
Then, with the generated classes: a watch that is open while a ConfigMap changes, strategic merge patches, apply with
conflicts, pages of a list, and errors of the API as exceptions.
"""

import json
import sys
import tempfile
import threading

from kubernetes import client, config, dynamic, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import ConflictError, NotFoundError


def every_type(finder, objects):
    for body in objects:
        name, namespace = body["metadata"]["name"], body["metadata"].get("namespace")
        where = {"name": name, "namespace": namespace}
        resource = finder.resources.get(api_version=body["apiVersion"], kind=body["kind"])
        before = resource.get(namespace=namespace).metadata.resourceVersion

        created = resource.create(body=body, namespace=namespace)
        assert created.metadata.uid, body
        change = {"metadata": {"labels": {"changed": "yes"}}}
        patched = resource.patch(body=change, content_type="application/merge-patch+json", **where)
        assert patched.metadata.labels.changed == "yes", patched
        try:
            stale = created.to_dict()
            stale["metadata"]["labels"] = {"changed": "no"}
            resource.replace(body=stale, namespace=namespace)
            raise AssertionError(f"{body['kind']}: an update of an old version was taken")
        except ConflictError as error:
            assert error.status == 409, error
        resource.delete(**where)

        seen = []
        for event in resource.watch(namespace=namespace, name=name, resource_version=before, timeout=30):
            seen.append(event["type"])
            assert event["object"].metadata.uid == created.metadata.uid, event
            if event["type"] == "DELETED":
                break
        expect(seen, body)
        try:
            resource.get(**where)
            raise AssertionError(f"{body['kind']} {name} is still there")
        except NotFoundError:
            pass


def expect(seen, body):
    """A creation, at least one change, the deletion; controllers may have changed it meanwhile."""
    assert seen[0] == "ADDED" and seen[-1] == "DELETED" and set(seen[1:-1]) == {"MODIFIED"}, (body["kind"], seen)


def generated_classes(namespace):
    core = client.CoreV1Api()
    opened, seen = threading.Event(), []

    def follow():
        for event in watch.Watch().stream(core.list_namespaced_config_map, namespace, timeout_seconds=30):
            found = event["object"]
            if found.metadata.name == "kube-root-ca.crt" or found.metadata.name == "first":
                opened.set()
            if found.metadata.name == "typed":
                seen.append((event["type"], (found.data or {}).get("key")))
                if event["type"] == "DELETED":
                    return

    core.create_namespaced_config_map(namespace, client.V1ConfigMap(metadata=client.V1ObjectMeta(name="first")))
    follower = threading.Thread(target=follow)
    follower.start()
    assert opened.wait(30), "the watch shows nothing"
    typed = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="typed"), data={"key": "1"})
    made = core.create_namespaced_config_map(namespace, typed)
    core.patch_namespaced_config_map("typed", namespace, {"data": {"key": "2"}})
    made.data["key"] = "3"
    assert code(lambda: core.replace_namespaced_config_map("typed", namespace, made)) == 409
    made.metadata.resource_version = None
    core.replace_namespaced_config_map("typed", namespace, made)
    core.delete_namespaced_config_map("typed", namespace)
    follower.join(30)
    assert seen == [("ADDED", "1"), ("MODIFIED", "2"), ("MODIFIED", "3"), ("DELETED", "3")], seen

    for number in range(5):
        meta = client.V1ObjectMeta(generate_name="page-", labels={"of": "pages"})
        core.create_namespaced_secret(namespace, client.V1Secret(metadata=meta, string_data={"n": str(number)}))
    page, names = core.list_namespaced_secret(namespace, label_selector="of=pages", limit=2), []
    while True:
        names += [item.metadata.name for item in page.items]
        if not page.metadata._continue:
            break
        page = core.list_namespaced_secret(
            namespace, label_selector="of=pages", limit=2, _continue=page.metadata._continue
        )
    assert len(set(names)) == 5, names
    core.delete_collection_namespaced_secret(namespace, label_selector="of=pages")
    assert core.list_namespaced_secret(namespace, label_selector="of=pages").items == []

    wrong = client.V1Service(metadata=client.V1ObjectMeta(name="Wrong_"), spec=client.V1ServiceSpec(ports=[]))
    assert code(lambda: core.create_namespaced_service(namespace, wrong)) == 422
    assert code(lambda: core.read_namespaced_pod("nobody", namespace)) == 404
    dry = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="dry"))
    core.create_namespaced_config_map(namespace, dry, dry_run="All")
    assert code(lambda: core.read_namespaced_config_map("dry", namespace)) == 404
    assert client.VersionApi().get_code().minor == "36"
    [subset] = core.read_namespaced_endpoints("kubernetes", "default").subsets
    assert subset.addresses and subset.ports[0].name == "https", subset
    review = client.AuthenticationV1Api().create_self_subject_review(client.V1SelfSubjectReview())
    [credential] = review.status.user_info.extra["authentication.kubernetes.io/credential-id"]
    assert credential.startswith("X509SHA256="), review


def server_side_apply(finder, namespace):
    maps = finder.resources.get(api_version="v1", kind="ConfigMap")

    def apply(value, manager, **options):
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"key": value}}
        return maps.server_side_apply(body=body, namespace=namespace, field_manager=manager, **options)

    assert apply("1", "one").metadata.managedFields[0].manager == "one"
    try:
        apply("2", "two")
        raise AssertionError("a field of another manager was changed")
    except ConflictError as error:
        assert json.loads(error.body)["message"] == 'Apply failed with 1 conflict: conflict with "one": .data.key'
    assert apply("2", "two", force_conflicts=True).data.key == "2"


def code(call):
    try:
        call()
    except ApiException as error:
        assert json.loads(error.body)["kind"] == "Status", error.body
        return error.status
    return 200


def main():
    kubeconfig, objects = sys.argv[1], json.load(open(sys.argv[2], encoding="utf-8"))
    config.load_kube_config(kubeconfig)
    with tempfile.TemporaryDirectory() as cache:
        finder = dynamic.DynamicClient(client.ApiClient(), cache_file=f"{cache}/discovery.json")
        every_type(finder, objects)
        namespace = next(o["metadata"]["namespace"] for o in objects if "namespace" in o["metadata"])
        generated_classes(namespace)
        server_side_apply(finder, namespace)
    print(f"{len(objects)} types")


main()
