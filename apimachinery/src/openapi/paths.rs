//! The paths of a resource, with their operations.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    Gvk, Model, Resource, Subresource, SubresourceKind, custom,
    definitions::Definitions,
    descriptions::Descriptions,
    names,
    operation::{
        ANY, Body, CUSTOM, OBJECT, Operation, PATCH, Path, STREAM, Write, consumes, path, produces, with_pretty,
    },
    parameters::{self, Parameter, Set},
};
use crate::schema::NamedType;

/// Makes the paths of one group version.
pub(super) struct Paths<'d, 'a> {
    pub(super) definitions: &'d mut Definitions<'a>,
    pub(super) descriptions: &'d Descriptions<'a>,
    pub(super) group: &'d str,
    pub(super) version: &'d str,
}

/// The references of a resource's types.
struct Models {
    object: Value,
    list: Value,
    is_custom: bool,
}

impl Paths<'_, '_> {
    fn base(&self) -> String {
        if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        }
    }

    fn gvk(&self, kind: &str) -> Gvk {
        Gvk { group: self.group.to_owned(), version: self.version.to_owned(), kind: kind.to_owned() }
    }

    /// The list of resources itself.
    pub(super) fn discovery(&mut self) -> Path {
        let schema = self.definitions.refer_meta("APIResourceList", &[]);
        let id = format!("get{}APIResources", names::operation_part(self.group, self.version));
        let operation = Operation {
            method: "get",
            id,
            description: "get available resources".to_owned(),
            action: None,
            parameters: Vec::new(),
            body: None,
            responses: vec![(200, "OK", schema)],
            produces: OBJECT.to_vec(),
        };
        Path { path: format!("{}/", self.base()), parameters: Vec::new(), operations: vec![operation] }
    }

    pub(super) fn resource(&mut self, resource: &Resource) -> Vec<Path> {
        let models = self.models(resource);
        let scope = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
        let all = format!("{}{scope}/{}", self.base(), resource.plural);
        let mut paths = Vec::new();
        if resource.namespaced && has(resource, "list") {
            let list = self.list(resource, &models, &format!("{}ForAllNamespaces", resource.kind));
            paths.push(path(format!("{}/{}", self.base(), resource.plural), Vec::new(), vec![list]));
        }
        let place = if resource.namespaced { vec![parameters::namespace()] } else { Vec::new() };
        paths.push(path(all.clone(), place.clone(), self.collection(resource, &models)));
        let mut named = place;
        named.push(parameters::name(&resource.kind));
        let one = format!("{all}/{{name}}");
        paths.push(path(one.clone(), named.clone(), self.item(resource, &models)));
        for subresource in &resource.subresources {
            paths.extend(self.subresource(resource, &models, subresource, &one, &named));
        }
        if has(resource, "watch") && !models.is_custom {
            paths.extend(self.watch_paths(resource, &named));
        }
        paths.retain(|path| !path.operations.is_empty());
        paths
    }

    fn models(&mut self, resource: &Resource) -> Models {
        let gvk = self.gvk(&resource.kind);
        match &resource.model {
            Model::BuiltIn(of) => {
                let list = self.definitions.list_of(of).map(|list| {
                    let kind = list.short_name().to_owned();
                    self.definitions.refer_kind(&list, self.gvk(&kind))
                });
                let object = self.definitions.refer_kind(of, gvk);
                Models { object, list: list.unwrap_or_else(|| json!({})), is_custom: false }
            }
            Model::Custom { list_kind, schema, selectable } => {
                let custom = custom::Custom { gvk: &gvk, plural: &resource.plural, list_kind, schema, selectable };
                let (object, list) = custom.define(self.definitions);
                Models { object, list, is_custom: true }
            }
        }
    }

    /// The first part of an operation's id, and the last.
    fn id(&self, verb: &str, infix: &str, resource: &Resource, suffix: &str) -> String {
        let namespaced = if resource.namespaced { "Namespaced" } else { "" };
        let part = names::operation_part(self.group, self.version);
        format!("{verb}{part}{infix}{namespaced}{}{suffix}", resource.kind)
    }

    fn list(&mut self, resource: &Resource, models: &Models, name: &str) -> Operation {
        let part = names::operation_part(self.group, self.version);
        let mut produces = if models.is_custom { CUSTOM.to_vec() } else { OBJECT.to_vec() };
        let mut what = "list";
        if !models.is_custom {
            produces.extend(STREAM);
            if has(resource, "watch") {
                what = "list or watch";
            }
        }
        Operation {
            method: "get",
            id: format!("list{part}{name}"),
            description: format!("{what} objects of kind {}", resource.kind),
            action: Some(("list", self.gvk(&resource.kind))),
            parameters: with_pretty(Set::List),
            body: None,
            responses: vec![(200, "OK", models.list.clone())],
            produces,
        }
    }

    fn collection(&mut self, resource: &Resource, models: &Models) -> Vec<Operation> {
        let mut operations = Vec::new();
        let namespaced = if resource.namespaced { "Namespaced" } else { "" };
        if has(resource, "list") {
            operations.push(self.list(resource, models, &format!("{namespaced}{}", resource.kind)));
        }
        if has(resource, "create") {
            let write = Write { id: self.id("create", "", resource, ""), is_custom: models.is_custom };
            let what = format!("create {} {}", names::article(&resource.kind), resource.kind);
            operations.push(write.post(what, self.gvk(&resource.kind), &models.object));
        }
        if has(resource, "deletecollection") {
            let (set, body) = if models.is_custom {
                (Set::List, None)
            } else {
                (Set::DeleteCollection, Some(self.delete_options(false)))
            };
            operations.push(Operation {
                method: "delete",
                id: self.id("delete", "Collection", resource, ""),
                description: format!("delete collection of {}", resource.kind),
                action: Some(("deletecollection", self.gvk(&resource.kind))),
                parameters: with_pretty(set),
                body,
                responses: vec![(200, "OK", self.status())],
                produces: produces(models.is_custom),
            });
        }
        operations
    }

    fn item(&mut self, resource: &Resource, models: &Models) -> Vec<Operation> {
        let gvk = self.gvk(&resource.kind);
        let mut operations =
            self.object_operations(resource, "", &resource.verbs, &gvk, &models.object, models.is_custom);
        if has(resource, "delete") {
            let answer = if resource.returns_deleted { models.object.clone() } else { self.status() };
            operations.push(Operation {
                method: "delete",
                id: self.id("delete", "", resource, ""),
                description: format!("delete {} {}", names::article(&resource.kind), resource.kind),
                action: Some(("delete", gvk)),
                parameters: with_pretty(Set::Delete),
                body: Some(self.delete_options(models.is_custom)),
                responses: vec![(200, "OK", answer.clone()), (202, "Accepted", answer)],
                produces: produces(models.is_custom),
            });
        }
        operations
    }

    /// Reading, replacing and patching an object or a subresource of it.
    fn object_operations(
        &mut self,
        resource: &Resource,
        subresource: &str,
        verbs: &[String],
        gvk: &Gvk,
        model: &Value,
        is_custom: bool,
    ) -> Vec<Operation> {
        let has = |verb: &str| verbs.iter().any(|known| known == verb);
        let suffix = names::capital(subresource);
        let of = if subresource.is_empty() { String::new() } else { format!("{subresource} of ") };
        let what = |action: &str| format!("{action} {of}the specified {}", resource.kind);
        let mut operations = Vec::new();
        if has("get") {
            let mut parameters = parameters::of(Set::Pretty);
            if is_custom {
                parameters.extend(parameters::of(Set::Get));
            }
            operations.push(Operation {
                method: "get",
                id: self.id("read", "", resource, &suffix),
                description: what("read"),
                action: Some(("get", gvk.clone())),
                parameters,
                body: None,
                responses: vec![(200, "OK", model.clone())],
                produces: produces(is_custom),
            });
        }
        if has("update") {
            operations.push(Operation {
                method: "put",
                id: self.id("replace", "", resource, &suffix),
                description: what("replace"),
                action: Some(("put", gvk.clone())),
                parameters: with_pretty(Set::Write),
                body: Some(Body { consumes: consumes(is_custom), schema: model.clone(), required: true }),
                responses: vec![(200, "OK", model.clone()), (201, "Created", model.clone())],
                produces: produces(is_custom),
            });
        }
        if has("patch") {
            let mut responses = vec![(200, "OK", model.clone())];
            if !is_custom {
                responses.push((201, "Created", model.clone()));
            }
            let patch = self.definitions.refer_constant("meta/v1.Patch", json!({"type": "object"}));
            operations.push(Operation {
                method: "patch",
                id: self.id("patch", "", resource, &suffix),
                description: what("partially update"),
                action: Some(("patch", gvk.clone())),
                parameters: with_pretty(Set::Patch),
                body: Some(Body {
                    // Custom resources know no strategic merge.
                    consumes: if is_custom { &PATCH[..3] } else { PATCH },
                    schema: patch,
                    required: true,
                }),
                responses,
                produces: produces(is_custom),
            });
        }
        operations
    }

    fn subresource(
        &mut self,
        resource: &Resource,
        models: &Models,
        subresource: &Subresource,
        one: &str,
        named: &[Parameter],
    ) -> Vec<Path> {
        let at = format!("{one}/{}", subresource.name);
        let (model, gvk) = match &subresource.kind {
            SubresourceKind::Own => (models.object.clone(), self.gvk(&resource.kind)),
            SubresourceKind::Other(of) => {
                let model = self.definitions.refer_kind(of, subresource.gvk.clone());
                let gvk = if models.is_custom { self.gvk(&resource.kind) } else { subresource.gvk.clone() };
                (model, gvk)
            }
            SubresourceKind::Text(options) => {
                return vec![self.text(resource, subresource, options, at, named)];
            }
            SubresourceKind::Connect { options, has_path } => {
                let mut named = named.to_vec();
                named.extend(parameters::fields(options.name(), options.definition(), self.descriptions));
                let mut paths = vec![path(at.clone(), named.clone(), self.connect(resource, subresource, ""))];
                if *has_path {
                    named.push(parameters::rest_of_path());
                    let operations = self.connect(resource, subresource, "WithPath");
                    paths.push(path(format!("{at}/{{path}}"), named, operations));
                }
                return paths;
            }
        };
        let mut operations =
            self.object_operations(resource, &subresource.name, &subresource.verbs, &gvk, &model, models.is_custom);
        if subresource.verbs.iter().any(|verb| verb == "create") {
            let id = self.id("create", "", resource, &names::capital(&subresource.name));
            let what = format!("create {} of {} {}", subresource.name, names::article(&resource.kind), resource.kind);
            operations.push(Write { id, is_custom: models.is_custom }.post(what, gvk, &model));
        }
        vec![path(at, named.to_vec(), operations)]
    }

    fn text(
        &mut self,
        resource: &Resource,
        subresource: &Subresource,
        options: &Arc<NamedType>,
        at: String,
        named: &[Parameter],
    ) -> Path {
        let mut parameters = parameters::of(Set::Pretty);
        parameters.extend(parameters::fields(options.name(), options.definition(), self.descriptions));
        let mut produces = vec!["text/plain"];
        produces.extend(OBJECT);
        let operation = Operation {
            method: "get",
            id: self.id("read", "", resource, &names::capital(&subresource.name)),
            description: format!("read {} of the specified {}", subresource.name, resource.kind),
            action: Some(("get", self.gvk(&resource.kind))),
            parameters,
            body: None,
            responses: vec![(200, "OK", json!({"type": "string"}))],
            produces,
        };
        path(at, named.to_vec(), vec![operation])
    }

    /// A connection can be requested by every method that its verbs map to.
    fn connect(&mut self, resource: &Resource, subresource: &Subresource, suffix: &str) -> Vec<Operation> {
        let has = |verb: &str| subresource.verbs.iter().any(|known| known == verb);
        let methods = [
            ("get", has("get")),
            ("put", has("update")),
            ("post", has("create")),
            ("delete", has("delete")),
            ("options", has("delete")),
            ("head", has("delete")),
            ("patch", has("patch")),
        ];
        let methods = methods.into_iter().filter(|(_, served)| *served);
        let operation = |(method, _): (&'static str, bool)| {
            let verb = format!("connect{}", names::operation_part(self.group, self.version));
            let namespaced = if resource.namespaced { "Namespaced" } else { "" };
            let name = names::capital(&subresource.name);
            Operation {
                method,
                id: format!("{verb}{}{namespaced}{}{name}{suffix}", names::capital(method), resource.kind),
                description: format!(
                    "connect {} requests to {} of {}",
                    method.to_uppercase(),
                    subresource.name,
                    resource.kind
                ),
                action: Some(("connect", subresource.gvk.clone())),
                parameters: Vec::new(),
                body: None,
                responses: vec![(200, "OK", json!({"type": "string"}))],
                produces: ANY.to_vec(),
            }
        };
        methods.map(operation).collect()
    }

    /// The old paths of watches.
    fn watch_paths(&mut self, resource: &Resource, named: &[Parameter]) -> Vec<Path> {
        let base = format!("{}/watch", self.base());
        let scope = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
        let event = self.definitions.refer_meta("WatchEvent", &[self.gvk("WatchEvent")]);
        let part = names::operation_part(self.group, self.version);
        let namespaced = if resource.namespaced { "Namespaced" } else { "" };
        let operation = |name: String, action: &'static str, description: String| Operation {
            method: "get",
            id: format!("watch{part}{name}"),
            description,
            action: Some((action, self.gvk(&resource.kind))),
            parameters: with_pretty(Set::List),
            body: None,
            responses: vec![(200, "OK", event.clone())],
            produces: OBJECT.iter().chain(STREAM).copied().collect(),
        };
        let all = || {
            let what = format!("watch individual changes to a list of {}. {WATCH_DEPRECATED}.", resource.kind);
            ("watchlist", what)
        };
        let one = format!(
            "watch changes to an object of kind {}. {WATCH_DEPRECATED}, filtered to a single item with the 'fieldSelector' parameter.",
            resource.kind
        );
        let place = &named[..named.len() - 1];
        let mut paths = Vec::new();
        if resource.namespaced {
            let (action, what) = all();
            let name = format!("{}ListForAllNamespaces", resource.kind);
            paths.push(path(format!("{base}/{}", resource.plural), Vec::new(), vec![operation(name, action, what)]));
        }
        let (action, what) = all();
        let list = operation(format!("{namespaced}{}List", resource.kind), action, what);
        paths.push(path(format!("{base}{scope}/{}", resource.plural), place.to_vec(), vec![list]));
        let one = operation(format!("{namespaced}{}", resource.kind), "watch", one);
        paths.push(path(format!("{base}{scope}/{}/{{name}}", resource.plural), named.to_vec(), vec![one]));
        paths
    }

    fn status(&mut self) -> Value {
        self.definitions.refer_meta("Status", &[])
    }

    fn delete_options(&mut self, is_custom: bool) -> Body {
        let schema = self.definitions.refer_meta("DeleteOptions", &[self.gvk("DeleteOptions")]);
        Body { consumes: consumes(is_custom), schema, required: false }
    }
}

const WATCH_DEPRECATED: &str = "deprecated: use the 'watch' parameter with a list operation instead";

fn has(resource: &Resource, verb: &str) -> bool {
    resource.verbs.iter().any(|known| known == verb)
}
