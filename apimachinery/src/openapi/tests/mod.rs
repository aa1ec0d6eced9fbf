mod definitions;
mod documents;
mod recorded;
mod v2;

use std::sync::Arc;

use serde_json::Value;

use super::{GroupVersionResources, Gvk, Model, Resource, Subresource, SubresourceKind};
use crate::testing::TYPES;

fn verbs(words: &str) -> Vec<String> {
    words.split(' ').map(str::to_owned).collect()
}

const ALL: &str = "create delete deletecollection get list patch update watch";

fn built_in(plural: &str, kind: &str, go_type: &str) -> Resource {
    Resource {
        plural: plural.to_owned(),
        namespaced: true,
        kind: kind.to_owned(),
        verbs: verbs(ALL),
        model: Model::BuiltIn(TYPES.named(go_type).unwrap()),
        returns_deleted: false,
        subresources: vec![status()],
    }
}

fn status() -> Subresource {
    Subresource {
        name: "status".to_owned(),
        verbs: verbs("get patch update"),
        gvk: Gvk::default(),
        kind: SubresourceKind::Own,
    }
}

fn group_version(group: &str, resources: Vec<Resource>) -> GroupVersionResources {
    GroupVersionResources { group: group.to_owned(), version: "v1".to_owned(), resources }
}

fn pods() -> GroupVersionResources {
    let mut pods = Resource { returns_deleted: true, ..built_in("pods", "Pod", "core/v1.Pod") };
    let of = |name: &str| TYPES.named(name).unwrap();
    let gvk =
        |group: &str, kind: &str| Gvk { group: group.to_owned(), version: "v1".to_owned(), kind: kind.to_owned() };
    let subresource = |name: &str, words: &str, gvk: Gvk, kind: SubresourceKind| Subresource {
        name: name.to_owned(),
        verbs: verbs(words),
        gvk,
        kind,
    };
    let connect = |name: &str, has_path: bool| SubresourceKind::Connect { options: of(name), has_path };
    pods.subresources.extend([
        subresource("log", "get", gvk("", "Pod"), SubresourceKind::Text(of("core/v1.PodLogOptions"))),
        subresource("exec", "create get", gvk("", "PodExecOptions"), connect("core/v1.PodExecOptions", false)),
        subresource("proxy", "create get", gvk("", "PodProxyOptions"), connect("core/v1.PodProxyOptions", true)),
        subresource("eviction", "create", gvk("policy", "Eviction"), SubresourceKind::Other(of("policy/v1.Eviction"))),
    ]);
    group_version("", vec![pods])
}

fn custom(schema: Value) -> GroupVersionResources {
    let scale = Subresource {
        name: "scale".to_owned(),
        verbs: verbs("get patch update"),
        gvk: Gvk { group: "autoscaling".to_owned(), version: "v1".to_owned(), kind: "Scale".to_owned() },
        kind: SubresourceKind::Other(TYPES.named("autoscaling/v1.Scale").unwrap()),
    };
    let model = Model::Custom {
        list_kind: "OddList".to_owned(),
        schema: Arc::new(schema),
        selectable: vec![".spec.a".to_owned()],
    };
    let odds = Resource { model, subresources: vec![scale, status()], ..built_in("odds", "Odd", "core/v1.Pod") };
    group_version("example.com", vec![odds])
}
