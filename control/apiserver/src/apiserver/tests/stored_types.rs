//! Whatever was stored can be read back as its own type: one object that cannot makes every list of its type fail.

use proptest::{prelude::*, strategy::Strategy};

use super::{
    templates::{collection, name_of, object},
    *,
};
use crate::{
    apiserver::types::{Conversion, Conversions, Definition, Resource, TypeSchema, VersionSpec},
    fuzzing::client_types::decode,
    kinds::types,
    schema,
    store::{Expected, Key, Write},
};

/// What is put into fields, besides what fits.
fn odd() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        Value::Null,
        json!([]),
        json!({}),
        json!([null]),
        json!({"a": null}),
        json!(""),
        json!("abc"),
        json!("1Gi"),
        json!("2020-01-01 00:00:00Z"),
        json!("9999-12-31T23:59:59.999999999-23:59"),
        json!(0),
        json!(-1),
        json!(1.5),
        json!(99_999_999_999_i64),
        json!(u64::MAX),
        json!(false),
        json!([{"name": null}]),
        json!({"name": "x", "kind": 1}),
        json!("kubernetes"),
        json!(["kubernetes", "a/b"]),
        json!({"$patch": "replace", "a": "b"}),
        json!([{"$patch": "delete", "name": "c"}]),
    ])
}

/// One step: which field, what it becomes, and how it is sent.
type Step = (prop::sample::Index, Option<Value>, u8, bool);

fn set(info: &mut Value, path: &[&str], value: Value) {
    let Some((first, rest)) = path.split_first() else { return *info = value };
    if let (Value::Array(items), Ok(at)) = (&mut *info, first.parse::<usize>()) {
        if items.len() <= at {
            items.resize(at + 1, json!({}));
        }
        return set(&mut items[at], rest, value);
    }
    if !info.is_object() {
        *info = if *first == "0" { json!([{}]) } else { json!({}) };
        return set(info, path, value);
    }
    set(&mut info[*first], rest, value);
}

/// What is stored of a type, read as the type.
fn check(api: &Api, resource: &Version, what: &str) {
    for object in api.store().list(resource.id().unwrap(), None).0 {
        // Of a custom type what is stored, since bad metadata is left out when it is read.
        let read = if resource.spec.schema.is_built_in() {
            decode(
                &resource.gvk.api_version(),
                &resource.gvk.kind,
                &resource.encode(&object, &Conversions::none()).unwrap(),
            )
        } else {
            windlass_kit::json::from_slice::<kube::core::DynamicObject>(&object.bytes)
                .map(drop)
                .map_err(|e| e.to_string())
        };
        if let Err(why) = read {
            let key = &object.key;
            panic!("{what}: {key:?} cannot be read: {why}: {}", String::from_utf8_lossy(&object.bytes));
        }
    }
}

fn pointers(resource: &Version) -> Vec<(String, Value)> {
    schema::forms::pointers(resource.spec.schema.node())
}

async fn run(api: &Api, resource: &Version, steps: Vec<Step>) {
    let base = collection(resource);
    let path = format!("{base}/{}", name_of(resource, "x"));
    let fields = pointers(resource);
    let user = User::internal("test");
    for (field, value, how, keep) in steps {
        let (pointer, fitting) = field.get(&fields);
        let parts: Vec<&str> = pointer.split('/').skip(1).collect();
        let value = value.unwrap_or_else(|| fitting.clone());
        let stored = call(api, "GET", &path, Value::Null).await;
        let mut whole = if stored.code == 200 && keep { stored.body } else { object(resource, "x") };
        let mut merge = json!({});
        set(&mut merge, &parts, value.clone());
        set(&mut whole, &parts, value.clone());
        let operations = json!([
            {"op": if keep { "add" } else { "replace" }, "path": pointer, "value": value},
            {"op": "add", "path": "/metadata/labels", "value": {"q": "1"}},
        ]);
        let subresource = |subresource: &str| format!("{path}/{subresource}");
        let (method, path, kind, body) = match how % 20 {
            0 | 1 => ("POST", base.clone(), "application/json", whole),
            2 => ("PUT", path.clone(), "application/json", whole),
            3 => ("PATCH", path.clone(), "application/merge-patch+json", merge),
            4 => ("PATCH", path.clone(), "application/strategic-merge-patch+json", merge),
            5 => ("PATCH", path.clone(), "application/json-patch+json", operations),
            6 => ("PATCH", format!("{path}?fieldManager=f"), "application/apply-patch+yaml", whole),
            7 => ("PUT", subresource("status"), "application/json", whole),
            8 => ("PATCH", subresource("status"), "application/merge-patch+json", merge),
            9 => ("PATCH", subresource("status"), "application/strategic-merge-patch+json", merge),
            10 => ("PATCH", subresource("status"), "application/json-patch+json", operations),
            11 => ("PUT", subresource("scale"), "application/json", {
                json!({"metadata": {"name": "x"}, "spec": {"replicas": value}})
            }),
            12 => ("PATCH", subresource("scale"), "application/merge-patch+json", json!({"spec": {"replicas": value}})),
            13 => ("POST", subresource("binding"), "application/json", {
                json!({"metadata": {"name": "x", "labels": value, "annotations": {"a": value}}, "target": {"name": "node"}})
            }),
            14 => ("PUT", subresource("finalize"), "application/json", {
                json!({"metadata": {"name": "x", "labels": {"a": "b"}}, "spec": {"finalizers": value}})
            }),
            15 => ("DELETE", path.clone(), "application/json", {
                json!({"gracePeriodSeconds": value, "propagationPolicy": if keep { "Foreground" } else { "Orphan" }})
            }),
            16 => ("POST", subresource("eviction"), "application/json", {
                json!({"metadata": {"name": "x"}, "deleteOptions": {"gracePeriodSeconds": value}})
            }),
            17 => ("PATCH", subresource("ephemeralcontainers"), "application/strategic-merge-patch+json", {
                json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "i", "env": value}]}})
            }),
            18 => ("PATCH", subresource("resize"), "application/strategic-merge-patch+json", {
                json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": value}}}]}})
            }),
            _ => {
                ("DELETE", format!("{base}?labelSelector=l"), "application/json", json!({"gracePeriodSeconds": value}))
            }
        };
        let reply = send(api, &user, method, &path, kind, "application/json", &body.to_string()).await;
        let what = format!("{method} {path} {kind} {body}");
        // Upstream answers so to an apply that does not fit the type, and to a strategic patch that does not fit its list.
        let unfit = ["failed to create typed patch object", "does not contain declared merge key"]
            .iter()
            .any(|words| reply.body["message"].as_str().is_some_and(|message| message.contains(words)));
        assert!(reply.code < 500 || unfit, "{what}: {}", reply.body);
        check(api, resource, &what);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 200, ..ProptestConfig::default() })]
    #[test]
    fn whatever_is_stored_can_be_read_as_its_own_type(
        kind in any::<prop::sample::Index>(),
        steps in prop::collection::vec((any::<prop::sample::Index>(), prop::option::of(odd()), any::<u8>(), any::<bool>()), 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // Every type in every case, starting at a random one, so that shrinking finds the one that fails.
        runtime.block_on(async {
            let all = stored_versions(&api());
            for offset in 0..all.len() {
                let api = with_namespace().await;
                run(&api, &all[(kind.index(all.len()) + offset) % all.len()], steps.clone()).await;
            }
        });
    }

    #[test]
    fn whatever_is_stored_of_a_custom_type_can_be_read_by_all_clients(
        steps in prop::collection::vec((any::<prop::sample::Index>(), prop::option::of(odd()), any::<u8>(), any::<bool>()), 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let api = with_namespace().await;
            let widgets = serve_widgets(&api).await;
            run(&api, &widgets, steps).await;
        });
    }
}

/// Serves a custom type with an embedded object, as a start with its definition does.
async fn serve_widgets(api: &Api) -> Arc<Version> {
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"size": {"type": "integer"}}},
        "template": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
    }});
    let names = json!({"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.test.example", "uid": "u", "generation": 1},
        "spec": {"group": "test.example", "scope": "Namespaced", "names": names, "versions": [
            {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}}},
        ]},
        "status": {"acceptedNames": names, "storedVersions": ["v1"],
            "conditions": [{"type": "NamesAccepted", "status": "True"}, {"type": "Established", "status": "True"}]}});
    let key = Key { namespace: String::new(), name: "widgets.test.example".to_owned() };
    let resource = api.store().resource("customresourcedefinitions.apiextensions.k8s.io");
    let (expected, value) = (Expected::Absent, Some(definition));
    let write = Write { resource, key, expected, value, guards: Vec::new(), companions: Vec::new() };
    api.store().write(write).await.unwrap();
    crate::apiextensions::CustomResources::load(api, &api.conversion_webhooks);
    let catalog = api.catalogs().current();
    Arc::clone(catalog.find("test.example", "v1", "widgets").unwrap())
}

#[tokio::test]
async fn no_patch_makes_an_object_of_another_kind() {
    let api = with_namespace().await;
    call(&api, "POST", MAPS, map("m")).await;
    let path = format!("{MAPS}/m?fieldManager=f");
    let user = User::internal("test");
    for (kind, body, code) in [
        ("application/merge-patch+json", json!({"kind": "Pood"}), 422),
        ("application/merge-patch+json", json!({"kind": "Secret", "apiVersion": "v1"}), 422),
        ("application/merge-patch+json", json!({"apiVersion": "v2"}), 422),
        ("application/merge-patch+json", json!({"kind": 7}), 422),
        ("application/merge-patch+json", json!({"kind": null, "apiVersion": null}), 200),
        ("application/json-patch+json", json!([{"op": "replace", "path": "/kind", "value": "Pood"}]), 422),
        ("application/json-patch+json", json!([{"op": "remove", "path": "/apiVersion"}]), 200),
        ("application/json-patch+json", json!([{"op": "replace", "path": "", "value": 7}]), 422),
        // Merged into the type, whatever it says, as upstream does.
        ("application/strategic-merge-patch+json", json!({"kind": "Pood", "apiVersion": "v7"}), 200),
        ("application/strategic-merge-patch+json", json!({"$patch": "replace", "kind": "Pood"}), 400),
        ("application/apply-patch+yaml", json!({"apiVersion": "v1", "kind": "Pood", "metadata": {"name": "m"}}), 400),
        ("application/apply-patch+yaml", json!({"metadata": {"name": "m"}}), 400),
    ] {
        let reply = send(&api, &user, "PATCH", &path, kind, "*/*", &body.to_string()).await;
        assert_eq!(reply.code, code, "{kind} {body}: {}", reply.body);
        let now = call(&api, "GET", &path, Value::Null).await.body;
        assert_eq!((&now["kind"], &now["apiVersion"]), (&json!("ConfigMap"), &json!("v1")), "{body}");
    }
    let client = Client::new(api.router().layer(axum::Extension(user)), "n");
    let maps: KubeApi<ConfigMap> = KubeApi::namespaced(client, "n");
    assert_eq!(maps.list(&ListParams::default()).await.unwrap().items.len(), 1);
}

#[tokio::test]
async fn undecodable_objects_are_repaired_at_the_start() {
    let api = api();
    let secret = json!({"kind": "Pood", "apiVersion": "v1", "metadata": {"name": "m", "namespace": "n", "labels": {"a": "b"}},
        "data": {"a": "b", "n": 7}});
    let broken_pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "namespace": "n"},
        "spec": {"containers": [null, {"name": "c", "image": "i", "ports": [{"containerPort": "80"}]}]}});
    let fine = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "fine", "namespace": "n"}});
    for (resource, name, value) in
        [("configmaps", "m", secret), ("pods", "p", broken_pod), ("configmaps", "fine", fine)]
    {
        let key = Key { namespace: "n".to_owned(), name: name.to_owned() };
        let resource = api.store().resource(resource);
        let write = Write {
            resource,
            key,
            expected: Expected::Absent,
            value: Some(value),
            guards: Vec::new(),
            companions: Vec::new(),
        };
        api.store().write(write).await.unwrap();
    }
    let client = Client::new(api.router().layer(axum::Extension(User::internal("t"))), "n");
    let maps: KubeApi<ConfigMap> = KubeApi::namespaced(client.clone(), "n");
    let pods: KubeApi<Pod> = KubeApi::namespaced(client, "n");
    assert!(maps.list(&ListParams::default()).await.is_err() && pods.list(&ListParams::default()).await.is_err());
    let before = api.store().revision();
    api.repair().await;
    assert_eq!(api.store().revision(), before + 2, "what could be read stays as it is");
    let mended = maps.get("m").await.unwrap();
    assert_eq!(serde_json::to_value(mended.data).unwrap(), json!({"a": "b"}));
    assert_eq!(maps.list(&ListParams::default()).await.unwrap().items.len(), 2);
    let pod = pods.get("p").await.unwrap();
    assert_eq!(pod.spec.unwrap().containers.last().unwrap().name, "c");
}

/// A definition may have stopped to serve the version in which it stores, or stored before.
#[tokio::test]
async fn objects_of_a_version_that_is_not_served_are_repaired_in_it() {
    #[derive(Debug)]
    struct Things;
    impl crate::apiserver::Strategy for Things {}
    let api = with_namespace().await;
    let schema = |field: &str| {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {field: {"type": "string"}}}}});
        TypeSchema::custom("Thing".into(), &schema, &types::schema("meta/v1.ObjectMeta"))
    };
    let mut resource = Resource::new("example.com", "things", "Thing", Things);
    resource.schemas = vec![("example.com/v1".to_owned(), schema("old")), ("example.com/v2".to_owned(), schema("new"))];
    let mut v2 = VersionSpec::new("v2", schema("new"));
    v2.conversion = Conversion::Rename;
    api.catalogs().put("things.example.com", Definition::of(resource, vec![v2], "v1"));
    let value = json!({"kind": "Thing", "apiVersion": "example.com/v1", "metadata": {"name": "a", "namespace": "n", "labels": {"x": 5}},
        "spec": {"old": "kept"}});
    let key = Key { namespace: "n".to_owned(), name: "a".to_owned() };
    let resource = api.store().resource("things.example.com");
    let (expected, guards, companions) = (Expected::Absent, Vec::new(), Vec::new());
    let write = Write { resource, key: key.clone(), expected, value: Some(value), guards, companions };
    api.store().write(write).await.unwrap();
    let list = call(&api, "GET", "/apis/example.com/v2/namespaces/n/things", Value::Null).await;
    assert_eq!((list.code, &list.body["items"][0]["metadata"]["labels"]), (200, &Value::Null), "{}", list.body);
    assert!(api.repair().await);
    let stored = api.store().get(resource, &key).unwrap().value();
    assert_eq!(stored["apiVersion"], "example.com/v1");
    assert_eq!((&stored["metadata"]["labels"]["x"], &stored["spec"]["old"]), (&Value::Null, &json!("kept")));
}
