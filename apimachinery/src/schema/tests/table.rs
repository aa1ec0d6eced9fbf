use serde_json::json;

use crate::{
    schema::{Kind, ListType, MapType, Presence, Schema, TableError, TypeIndex, unset},
    testing::{TYPES, schema},
};

fn at<'a>(root: &'a Schema, path: &str) -> &'a Schema {
    path.split('.').fold(root, |schema, name| {
        let schema = if schema.items().is_some() { schema.items().unwrap() } else { schema };
        schema.field(name).unwrap_or_else(|| panic!("{path}: {name} is unknown"))
    })
}

#[test]
fn a_pod_is_described_whole() {
    let pod = schema("core/v1.Pod");
    let ports = at(&pod, "spec.containers.ports");
    assert_eq!(ports.list_map_keys().iter().map(|key| &**key).collect::<Vec<_>>(), ["containerPort", "protocol"]);
    assert_eq!(ports.merge_key.as_deref(), Some("containerPort"));
    assert!(ports.patch_strategy.merge && !ports.patch_strategy.retain_keys && !ports.is_atomic());
    assert_eq!(at(&pod, "spec.containers.ports.protocol").default.as_deref(), Some(&json!("TCP")));
    assert!(at(&pod, "spec.tolerations").is_atomic() && at(&pod, "spec.nodeSelector").is_atomic());
    assert!(!at(&pod, "metadata.labels").is_atomic() && !at(&pod, "spec").is_atomic());
    assert_eq!(at(&pod, "metadata.finalizers").list_type, Some(ListType::Set));
    assert!(at(&pod, "spec.volumes").patch_strategy.retain_keys);
    assert!(
        at(&pod, "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution.labelSelector").is_atomic()
    );
    assert_eq!(at(&pod, "spec.containers").to_string(), "[]v1.Container");
    assert_eq!(at(&pod, "spec.containers.resources.limits").to_string(), "v1.ResourceList");
    let spec = at(&pod, "spec").object().unwrap();
    assert_eq!((spec.properties["containers"].number, spec.properties["containers"].required), (Some(2), true));
    assert_eq!(spec.properties["enableServiceLinks"].presence, Presence::Pointer);
    assert_eq!(spec.properties["hostNetwork"].presence, Presence::Value);
    assert_eq!(pod.property("metadata").unwrap().presence, Presence::Always);
    assert!(matches!(at(&pod, "spec.containers.resources.limits").field("cpu").unwrap().kind, Kind::Quantity));
    let policy = at(&pod, "spec.restartPolicy").validations.as_ref().unwrap();
    assert_eq!(policy.enumeration, ["Always", "Never", "OnFailure"]);
}

/// As kube-apiserver 1.36 answers the creation of each, without what is `null`.
#[test]
fn a_status_that_nobody_has_set_has_what_go_always_writes() {
    for (name, status) in [
        ("apps/v1.Deployment", Some(json!({}))),
        ("apps/v1.StatefulSet", Some(json!({"replicas": 0, "availableReplicas": 0}))),
        (
            "policy/v1.PodDisruptionBudget",
            Some(json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0})),
        ),
        ("core/v1.Service", Some(json!({"loadBalancer": {}}))),
        ("core/v1.ConfigMap", None),
    ] {
        assert_eq!(unset(&schema(name), "status"), status, "{name}");
    }
    assert_eq!(
        unset(&schema("core/v1.Node"), "status").unwrap()["daemonEndpoints"],
        json!({"kubeletEndpoint": {"Port": 0}})
    );
}

#[test]
fn inlined_structs_are_fields_in_json_and_messages_in_protobuf() {
    let volume = schema("core/v1.Volume");
    let object = volume.object().unwrap();
    let source = &object.properties["emptyDir"];
    assert!(source.inlined && source.number.is_none() && source.presence == Presence::Pointer);
    assert_eq!(object.inline.len(), 1);
    assert_eq!((object.inline[0].number, object.inline[0].of.name()), (Some(2), "core/v1.VolumeSource"));
    assert!(object.inline[0].of.definition().property("emptyDir").unwrap().number.is_some());
    // An inlined struct that inlines another.
    let rule = schema("admissionregistration/v1.NamedRuleWithOperations");
    assert!(rule.property("apiGroups").unwrap().inlined);
    let meta = schema("core/v1.Pod");
    assert!(meta.property("apiVersion").unwrap().number.is_none());
}

#[test]
fn a_use_of_a_type_overrides_its_map_type() {
    let volume = schema("core/v1.PersistentVolume");
    let claim = at(&volume, "spec.claimRef");
    assert_eq!((claim.map_type, claim.resolved().map_type), (Some(MapType::Granular), Some(MapType::Atomic)));
    assert!(!claim.is_atomic() && schema("core/v1.ObjectReference").is_atomic());
}

#[test]
fn a_type_may_contain_itself() {
    let schema = schema("apiextensions/v1.JSONSchemaProps");
    let inner = schema.field("not").unwrap();
    assert!(std::ptr::eq(inner.resolved(), schema.resolved()));
    let items = schema.field("items").unwrap();
    assert_eq!(items.alternative(&json!({})).unwrap().type_name(), Some("apiextensions/v1.JSONSchemaProps"));
    assert!(items.alternative(&json!([])).unwrap().items().is_some());
    assert!(items.alternative(&json!(true)).is_none());
    assert!(schema.field("additionalProperties").unwrap().alternative(&json!(true)).is_some());
}

#[test]
fn messages_that_wrap_a_list_are_marked() {
    let extra = schema("authentication/v1.UserInfo");
    let Kind::Map(values) = &extra.field("extra").unwrap().kind else { panic!("a map") };
    assert!(values.is_message);
    assert_eq!(values.go_type.as_deref(), Some("authentication/v1.ExtraValue"));
    assert!(schema("meta/v1.APIResource").field("verbs").unwrap().is_message);
    assert!(!schema("meta/v1.APIResource").field("categories").unwrap().is_message);
}

#[test]
fn numbers_are_unique_and_every_field_of_a_message_has_one() {
    for name in TYPES.names() {
        let schema = schema(name);
        let Some(object) = schema.object() else { continue };
        let own = object.properties.values().filter(|property| !property.inlined);
        let mut numbers: Vec<u32> = own.clone().filter_map(|property| property.number).collect();
        if !numbers.is_empty() {
            assert_eq!(numbers.len(), own.count(), "{name} has fields without number");
        }
        numbers.extend(object.inline.iter().filter_map(|inline| inline.number));
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count, "{name} has a number twice");
    }
}

#[test]
fn keys_of_lists_are_scalars_of_their_items() {
    for name in TYPES.names() {
        let schema = schema(name);
        for (field, property) in schema.object().into_iter().flat_map(|object| &object.properties) {
            let keys = property.schema.list_map_keys().iter().chain(&property.schema.merge_key);
            for key in keys {
                let held = property.schema.items().and_then(|item| item.field(key)).map(|key| &key.kind);
                let scalar = matches!(held, Some(Kind::String | Kind::Integer(_) | Kind::Bool));
                assert!(scalar, "{name}.{field} has the key {key}: {held:?}");
            }
        }
    }
}

#[test]
fn faulty_tables_are_refused() {
    let index = TypeIndex::new(&[(
        "x/v1",
        "A\n\tb\tB\t1\nC\n\tn\tint32\tone\nD\n\tn\tint32\t1\tloud\nE\n\te\tE\t1\tpointer\n",
    )]);
    assert_eq!(index.get("x/v1.Z").unwrap_err(), TableError::Unknown("x/v1.Z".to_owned()));
    assert_eq!(index.get("x/v1.A").unwrap_err(), TableError::Unknown("x/v1.B".to_owned()));
    let error = index.get("x/v1.C").unwrap_err().to_string();
    assert_eq!(error, "line \"\\tn\\tint32\\tone\" of the type \"x/v1.C\" cannot be read: \"one\" is no number");
    assert!(index.get("x/v1.D").unwrap_err().to_string().contains("\"loud\" is no attribute"));
    assert!(index.get("x/v1.E").is_ok());
}
