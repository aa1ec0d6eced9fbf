"""An operator on kopf, as users write them: `python3 -m kopf run --standalone --all-namespaces kopf_operator.py`.

A mirror is so many ConfigMaps with its text. Its webhooks are served with the certificate in the directory that
CERTIFICATES names; kopf writes their configurations itself. tests/tests/clients/operators/kopf.rs says what is expected of it.
"""

import os

import kopf
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

GROUP, VERSION, PLURAL = "kopf.example.com", "v1", "mirrors"
COPY_OF = f"{GROUP}/copy-of"


@kopf.on.startup()
def configure(settings, **_):
    folder = os.environ["CERTIFICATES"]
    settings.admission.managed = f"auto.{GROUP}"
    settings.admission.server = kopf.WebhookServer(
        addr="127.0.0.1",
        host="127.0.0.1",
        certfile=f"{folder}/tls.crt",
        pkeyfile=f"{folder}/tls.key",
        cafile=f"{folder}/ca.crt",
    )
    settings.networking.error_backoffs = [1] * 60
    settings.persistence.finalizer = f"{GROUP}/farewell"
    config.load_kube_config()


@kopf.on.mutate(GROUP, VERSION, PLURAL, operations=["CREATE", "UPDATE"])
def default(spec, patch, warnings, **_):
    if "copies" not in spec:
        patch.spec["copies"] = 2
        warnings.append("spec.copies is defaulted to 2")


@kopf.on.validate(GROUP, VERSION, PLURAL, operations=["CREATE", "UPDATE"])
def check(spec, **_):
    if spec.get("text") == "bad":
        raise kopf.AdmissionError("no mirror shows a bad text", code=422)


def reconcile(name, namespace, spec, body):
    """Makes the copies that are wanted, and removes those that are not."""
    core = client.CoreV1Api()
    wanted = {f"{name}-{number}" for number in range(spec["copies"])}
    for copy in sorted(wanted):
        manifest = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": copy, "labels": {COPY_OF: name}},
            "data": {"text": spec["text"]},
        }
        kopf.adopt(manifest, owner=body)
        try:
            core.create_namespaced_config_map(namespace, manifest)
        except ApiException as error:
            if error.status != 409:
                raise
            core.patch_namespaced_config_map(copy, namespace, {"data": {"text": spec["text"]}})
    for copy in core.list_namespaced_config_map(namespace, label_selector=f"{COPY_OF}={name}").items:
        if copy.metadata.name not in wanted:
            core.delete_namespaced_config_map(copy.metadata.name, namespace)


@kopf.on.resume(GROUP, VERSION, PLURAL)
@kopf.on.create(GROUP, VERSION, PLURAL)
@kopf.on.update(GROUP, VERSION, PLURAL, field="spec")
def mirror(name, namespace, spec, body, patch, **_):
    reconcile(name, namespace, spec, body)
    patch.status["copies"] = spec["copies"]
    kopf.info(body, reason="Mirrored", message=f"{spec['copies']} copies of {spec['text']}")


@kopf.on.event("configmaps", labels={COPY_OF: kopf.PRESENT})
def copied(event, namespace, labels, **_):
    """A copy that somebody deleted comes back, unless its mirror is gone or going."""
    if event["type"] != "DELETED":
        return
    custom = client.CustomObjectsApi()
    try:
        body = custom.get_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, labels[COPY_OF])
    except ApiException as error:
        if error.status == 404:
            return
        raise
    if "deletionTimestamp" not in body["metadata"]:
        reconcile(body["metadata"]["name"], namespace, body["spec"], body)


@kopf.on.delete(GROUP, VERSION, PLURAL)
def farewell(name, namespace, spec, **_):
    note = {"metadata": {"name": f"farewell-{name}"}, "data": {"text": spec["text"]}}
    try:
        client.CoreV1Api().create_namespaced_config_map(namespace, note)
    except ApiException as error:
        # It may have been written before the operator was killed.
        if error.status != 409:
            raise
