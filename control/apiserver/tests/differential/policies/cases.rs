//! What the policies of each case do.

use serde_json::{Value, json};

use super::POLICIES;
use super::{Case, ask, creates, merged, mutations, of, rule, usual, validation};
use crate::{
    api_server::{JSON, Step},
    scenario::{APPLY, MERGE, pod, within},
};

/// A condition that makes a policy one of the object of a name alone.
fn for_name(name: &str) -> Value {
    json!({"matchConditions": [{"name": "n", "expression": format!("object.metadata.name == '{name}'")}]})
}

/// What variables, messages, annotations and budgets do.
pub(super) fn evaluation() -> Case {
    let limit = "[1,2,3,4,5,6,7,8,9,10]";
    let dear = format!("{limit}.all(a, {limit}.all(b, {limit}.all(c, {limit}.all(d, {limit}.all(e, a+b+c+d+e > 0)))))");
    let text = "'x'.replace('x', 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx')";
    let long = format!("({text}).replace('x', {text})");
    let variables = json!({"variables": [
        {"name": "missing", "expression": "object.data.none"},
        {"name": "unused", "expression": "object.data.none + variables.missing"},
        {"name": "user", "expression": "authorizer.group('').resource('pods').check('get').allowed()"},
        {"name": "a", "expression": "object.data.a"},
        {"name": "again", "expression": "variables.a + variables.a"},
    ]});
    let with = |name: &str, spec: Value| ("validating", merged(&merged(&for_name(name), &variables), &spec), json!({}));
    let of_validation = |name: &str, one: Value| with(name, validation(&one));
    let policies = vec![
        of_validation("e-missing", json!({"expression": "variables.missing == 'a'"})),
        of_validation(
            "e-again",
            json!({"expression": "variables.again != 'bb'", "messageExpression": "variables.again + request.operation"}),
        ),
        of_validation(
            "e-authorizer",
            json!({"expression": "!variables.user", "messageExpression": "string(variables.user)", "message": "plain"}),
        ),
        of_validation("e-lines", json!({"expression": "false", "messageExpression": "'a\\nb'", "message": "plain"})),
        of_validation("e-long", json!({"expression": "false", "messageExpression": long, "message": "plain"})),
        of_validation("e-blank", json!({"expression": " false ", "messageExpression": "'  '"})),
        of_validation("e-call", json!({"expression": format!("{dear} && {dear} && {dear}")})),
        with("e-all", json!({"validations": vec![json!({"expression": dear}); 30]})),
        with(
            "e-messages",
            json!({"validations": vec![json!({"expression": dear, "messageExpression": format!("string({dear})")}); 16]}),
        ),
        with(
            "e-annotation",
            json!({"auditAnnotations": [{"key": "k", "valueExpression": "object.data.none == 'a' ? 'a' : 'b'"}]}),
        ),
        with(
            "e-optional",
            json!({"validations": [{"expression": "object.data.?none.orValue('') == 'x' || variables.?a.orValue('') == 'y'"}]}),
        ),
        with(
            "e-types",
            json!({"validations": [{
                "expression": "namespaceObject.metadata.name == 'diff' && type(namespaceObject.metadata.creationTimestamp) == string",
            }]}),
        ),
        with("e-uid", json!({"validations": [{"expression": "namespaceObject.metadata.UID != ''"}]})),
        with(
            "e-request",
            json!({"validations": [{
                "expression": "request.dryRun || request.options.fieldManager == 'x'",
                "messageExpression": "request.kind.kind + request.resource.resource + request.namespace + string(size(request.userInfo.groups) > 0)",
            }]}),
        ),
    ];
    let names = names_of(&policies);
    let steps = names.iter().map(|name| creates(name, "b")).collect();
    Case { name: "evaluation", policies, steps }
}

/// For which requests policies and bindings are.
pub(super) fn matching() -> Case {
    let no = validation(&json!({"expression": "false"}));
    let rules = |rules: Value| merged(&json!({"matchConstraints": rules}), &no);
    let named = merged(&rule("", "*", "*"), &json!({"resourceNames": ["r-named", "r-other"]}));
    let cluster = merged(&rule("*", "*", "*"), &json!({"scope": "Cluster", "resourceNames": ["r-class"]}));
    let deletions = merged(&rule("", "v1", "configmaps"), &json!({"operations": ["DELETE"]}));
    let policies = vec![
        (
            "validating",
            rules(json!({"resourceRules": [named], "excludeResourceRules": [rule("", "v1", "secrets")]})),
            json!({"matchResources": {"objectSelector": {"matchExpressions": [{"key": "free", "operator": "DoesNotExist"}]}}}),
        ),
        ("validating", rules(json!({"resourceRules": [cluster]})), json!({})),
        (
            "validating",
            merged(
                &json!({"matchConstraints": {"resourceRules": [deletions]}}),
                &validation(&json!({"expression": "object == null && oldObject.data.a != 'kept'"})),
            ),
            json!({"matchResources": {"resourceRules": [rule("", "v1", "pods")], "namespaceSelector": {}, "objectSelector": {}}}),
        ),
        (
            "validating",
            merged(
                &json!({"matchConstraints": {"resourceRules": [merged(&rule("", "v1", "configmaps"), &json!({"operations": ["DELETE"], "resourceNames": ["r-kept"]}))]}}),
                &validation(&json!({"expression": "object == null && oldObject.data.a != 'kept'"})),
            ),
            json!({}),
        ),
        (
            "validating",
            merged(
                &for_name("r-exact"),
                &rules(json!({"matchPolicy": "Exact", "resourceRules": [rule("autoscaling", "v1", "*")]})),
            ),
            json!({}),
        ),
        (
            "validating",
            merged(
                &merged(&for_name("r-equal"), &rules(json!({"resourceRules": [rule("autoscaling", "v1", "*")]}))),
                &validation(
                    &json!({"expression": "false", "messageExpression": "string(object.spec.targetCPUUtilizationPercentage) + request.kind.version + request.requestKind.version"}),
                ),
            ),
            json!({}),
        ),
    ];
    let policies = [
        policies,
        vec![(
            "validating",
            merged(
                &json!({"matchConditions": [
                    {"name": "n", "expression": "object.metadata.name == 'r-seen' && namespaceObject == null"},
                    {"name": "o", "expression": "request.resource.version == 'v2' && request.kind.version == 'v1'"},
                ]}),
                &rules(json!({"resourceRules": [rule("autoscaling", "v1", "*")]})),
            ),
            json!({}),
        )],
    ]
    .concat();
    let autoscalers = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    let autoscaler = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "scaled"},
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}]}})
    };
    let steps = vec![
        creates("r-named", "a"),
        creates("r-free", "a"),
        ask("secret", "POST", &within("secrets"), JSON, json!({"metadata": {"name": "r-named"}})),
        ask(
            "free",
            "POST",
            &within("configmaps"),
            JSON,
            json!({"metadata": {"name": "r-named", "labels": {"free": "yes"}}}),
        ),
        ask(
            "update with new labels",
            "PATCH",
            &format!("{}/r-named", within("configmaps")),
            MERGE,
            json!({"metadata": {"labels": {"free": null}}}),
        ),
        ask(
            "class",
            "POST",
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            JSON,
            json!({"metadata": {"name": "r-class"}, "value": 1}),
        ),
        creates("r-kept", "kept"),
        ask("deletion", "DELETE", &format!("{}/r-kept", within("configmaps")), JSON, Value::Null),
        ask("deletion of nothing", "DELETE", &format!("{}/r-nothing", within("configmaps")), JSON, Value::Null),
        ask("exact", "POST", autoscalers, JSON, autoscaler("r-exact")),
        ask("equivalent", "POST", autoscalers, JSON, autoscaler("r-equal")),
        ask("as conditions see it", "POST", autoscalers, JSON, autoscaler("r-seen")),
    ];
    Case { name: "matching", policies, steps }
}

/// What policies may change of metadata, and how owners follow.
pub(super) fn metadata() -> Case {
    let of_name = |name: &str, kind: &str, expression: &str| {
        ("mutating", merged(&for_name(name), &mutations(&[(kind, expression)])), json!({}))
    };
    let policies = vec![
        of_name(
            "d-labels",
            "ApplyConfiguration",
            "Object{metadata: Object.metadata{labels: {'a': 'b'}, finalizers: ['x.y/z']}}",
        ),
        of_name("d-name", "ApplyConfiguration", "Object{metadata: Object.metadata{name: 'd-renamed'}}"),
        of_name("d-namespace", "JSONPatch", "[JSONPatch{op: 'add', path: '/metadata/namespace', value: 'other'}]"),
        of_name("d-uid", "JSONPatch", "[JSONPatch{op: 'add', path: '/metadata/uid', value: 'a'}]"),
        of_name("d-kind", "JSONPatch", "[JSONPatch{op: 'replace', path: '/kind', value: 'Secret'}]"),
        of_name(
            "d-owners",
            "JSONPatch",
            "[JSONPatch{op: 'replace', path: '/metadata/managedFields', value: [{'operation': 'Odd'}]}]",
        ),
        of_name("d-remove", "JSONPatch", "[JSONPatch{op: 'remove', path: '/data'}]"),
        of_name("d-wrong", "JSONPatch", "[JSONPatch{op: 'replace', path: '/data', value: 5}]"),
        of_name(
            "d-object",
            "JSONPatch",
            "[JSONPatch{op: 'add', path: '/data', value: Object{a: 'c', b: string(object.data.a)}}]",
        ),
        of_name("d-nested", "JSONPatch", "[JSONPatch{op: 'add', path: '/data', value: Object{a: Object.b{c: 'd'}}}]"),
        of_name("d-number", "ApplyConfiguration", "Object{data: {'n': 1}}"),
        of_name("d-null", "ApplyConfiguration", "Object{data: null, metadata: Object.metadata{labels: {'x': 'y'}}}"),
        of_name(
            "d-optional",
            "ApplyConfiguration",
            "Object{?data: object.?none, metadata: Object.metadata{?annotations: optional.of({'k': 'v'})}}",
        ),
        of_name(
            "d-params",
            "ApplyConfiguration",
            "Object{data: {'ns': namespaceObject.metadata.name, 'user': string(request.userInfo.username != ''), 'old': string(oldObject == null)}}",
        ),
    ];
    let names = names_of(&policies);
    let mut steps: Vec<Step> = names.iter().map(|name| creates(name, "b")).collect();
    let maps = within("configmaps");
    let applied =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "d-labels"}, "data": {"f": "g"}});
    steps.push(ask("apply", "PATCH", &format!("{maps}/d-labels?fieldManager=they&force=true"), APPLY, applied));
    steps.push(ask("read", "GET", &format!("{maps}/d-labels"), JSON, Value::Null));
    Case { name: "metadata", policies, steps }
}

/// Subresources, and connections.
pub(super) fn subresources() -> Case {
    let any = |operations: Value, group: &str, resource: &str| json!({"matchConstraints": {"resourceRules": [merged(&rule(group, "*", resource), &json!({"operations": operations}))]}});
    let writes = json!(["CREATE", "UPDATE"]);
    let says = |message: &str| validation(&json!({"expression": "false", "messageExpression": message}));
    let policies = vec![
        (
            "mutating",
            merged(
                &any(writes.clone(), "apps", "deployments/scale"),
                &mutations(&[(
                    "JSONPatch",
                    "[JSONPatch{op: 'replace', path: '/spec/replicas', value: object.spec.replicas + 1}]",
                )]),
            ),
            json!({}),
        ),
        (
            "validating",
            merged(
                &any(json!(["CONNECT"]), "", "pods/exec"),
                &says("object.kind + string(object.command) + request.subResource + request.name"),
            ),
            json!({}),
        ),
        (
            "validating",
            merged(
                &any(writes.clone(), "", "pods/eviction"),
                &says("object.kind + request.kind.group + request.subResource"),
            ),
            json!({}),
        ),
        (
            "validating",
            merged(&any(writes.clone(), "", "pods/binding"), &says("object.kind + string(object.target.name)")),
            json!({}),
        ),
        (
            "mutating",
            merged(
                &any(writes, "", "pods/status"),
                &mutations(&[(
                    "ApplyConfiguration",
                    "Object{status: Object.status{reason: 'changed'}, spec: Object.spec{nodeName: 'x'}}",
                )]),
            ),
            json!({}),
        ),
    ];
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployment = json!({"metadata": {"name": "policed"}, "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let one = format!("{}/policed", within("pods"));
    let eviction = json!({"kind": "Eviction", "apiVersion": "policy/v1", "metadata": {"name": "policed"}});
    let binding = json!({"kind": "Binding", "apiVersion": "v1", "metadata": {"name": "policed"}, "target": {"kind": "Node", "name": "n"}});
    let steps = vec![
        ask("deployment", "POST", deployments, JSON, deployment),
        ask("scale", "PATCH", &format!("{deployments}/policed/scale"), MERGE, json!({"spec": {"replicas": 3}})),
        ask("scaled", "GET", &format!("{deployments}/policed"), JSON, Value::Null),
        ask("pod", "POST", &within("pods"), JSON, pod("policed", json!({}))),
        ask("status", "PATCH", &format!("{one}/status"), MERGE, json!({"status": {"message": "m"}})),
        ask("eviction", "POST", &format!("{one}/eviction?dryRun=All"), JSON, eviction),
        ask("binding", "POST", &format!("{one}/binding"), JSON, binding),
        ask("exec", "POST", &format!("{one}/exec?command=a&command=b&container=c"), JSON, Value::Null),
    ];
    Case { name: "subresources", policies, steps }
}

/// Custom resources: what is pruned, gets defaults and is merged by their schema.
pub(super) fn custom_resources() -> Case {
    let of_name = |name: &str, kind: &str, expression: &str| {
        let spec = merged(&of("policed.example", "v1", "boxes"), &for_name(name));
        ("mutating", merged(&spec, &mutations(&[(kind, expression)])), json!({}))
    };
    let mut policies = vec![
        of_name("c-item", "ApplyConfiguration", "Object{spec: Object.spec{items: [Object.spec.items{name: 'b'}]}}"),
        of_name(
            "c-twice",
            "ApplyConfiguration",
            "Object{spec: Object.spec{items: [Object.spec.items{name: 'b'}, Object.spec.items{name: 'b'}]}}",
        ),
        of_name("c-atomic", "ApplyConfiguration", "Object{spec: Object.spec{words: ['a']}}"),
        of_name("c-field", "ApplyConfiguration", "Object{spec: Object.spec{colour: 'red'}}"),
        of_name(
            "c-open",
            "ApplyConfiguration",
            "Object{spec: Object.spec{open: Object.spec.open{any: 'thing', size: 7}}}",
        ),
        of_name("c-type", "ApplyConfiguration", "Object{spec: Object.spec{size: 'large'}}"),
        of_name("c-unknown", "JSONPatch", "[JSONPatch{op: 'add', path: '/spec/colour', value: 'red'}]"),
        of_name("c-invalid", "JSONPatch", "[JSONPatch{op: 'add', path: '/spec/size', value: 'large'}]"),
        of_name(
            "c-tested",
            "JSONPatch",
            "[JSONPatch{op: 'test', path: '/spec/size', value: 2}, JSONPatch{op: 'remove', path: '/spec'}]",
        ),
    ];
    let names = names_of(&policies);
    policies.push((
        "validating",
        merged(
            &of("policed.example", "v1", "boxes"),
            &json!({
                "paramKind": {"apiVersion": "policed.example/v1", "kind": "Box"},
                "validations": [{"expression": "object.spec.size <= params.spec.size", "messageExpression": "'at most ' + string(params.spec.size) + params.kind + params.apiVersion"}],
            }),
        ),
        json!({"paramRef": {"name": "c-limit", "parameterNotFoundAction": "Allow"}}),
    ));
    let boxes = "/apis/policed.example/v1/namespaces/diff/boxes";
    let object = |name: &str, size: i64| json!({"apiVersion": "policed.example/v1", "kind": "Box", "metadata": {"name": name}, "spec": {"size": size, "items": [{"name": "a"}]}});
    let creates = |name: &str, size: i64| ask(&format!("create {name}"), "POST", boxes, JSON, object(name, size));
    let mut steps: Vec<Step> = names.iter().map(|name| creates(name, 1)).collect();
    steps.extend([creates("c-limit", 5), creates("c-large", 6), creates("c-small", 5)]);
    Case { name: "custom resources", policies, steps }
}

/// The definition of what [`custom_resources`] is about.
pub(super) fn definition() -> Value {
    let text = json!({"type": "string"});
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "size": {"type": "integer"},
        "words": {"type": "array", "items": text},
        "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"size": {"type": "integer"}}},
        "items": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {
            "type": "object", "required": ["name"], "properties": {"name": text, "value": {"type": "string", "default": "usual"}},
        }},
    }}}});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    json!({
        "metadata": {"name": "boxes.policed.example"},
        "spec": {"group": "policed.example", "scope": "Namespaced", "names": {"plural": "boxes", "kind": "Box"}, "versions": [version]},
    })
}

/// The objects that policies are for, by the conditions of [`for_name`].
fn names_of(policies: &[(&str, Value, Value)]) -> Vec<String> {
    let name = |spec: &Value| spec["matchConditions"][0]["expression"].as_str()?.split('\'').nth(1).map(str::to_owned);
    policies.iter().filter_map(|(_, spec, _)| name(spec)).collect()
}

/// Policies with expressions that do not compile.
pub(super) fn refused() -> Vec<Step> {
    let write = |kind: &str, name: &str, spec: &Value| {
        let body = json!({"metadata": {"name": "refused"}, "spec": merged(&usual(kind), spec)});
        ask(&format!("refused: {name}"), "POST", &format!("{POLICIES}/{kind}admissionpolicies?dryRun=All"), JSON, body)
    };
    let mut steps = Vec::new();
    for expression in [
        "object.a = 1",
        "1 + 1",
        "params.a == 1",
        "variables.a == 1",
        "request.uid == ''",
        "authorizer.none()",
        "object.name.matches('[')",
        "timestamp('x') == object.a",
    ] {
        steps.push(write("validating", expression, &validation(&json!({"expression": expression}))));
        let message = json!({"expression": "true", "messageExpression": expression});
        steps.push(write("validating", &format!("message {expression}"), &validation(&message)));
        let annotation = json!({"auditAnnotations": [{"key": "k", "valueExpression": expression}]});
        steps.push(write("validating", &format!("annotation {expression}"), &annotation));
        let variable = json!({"variables": [{"name": "v", "expression": expression}], "validations": [{"expression": "variables.v"}]});
        steps.push(write("validating", &format!("variable {expression}"), &variable));
    }
    for (kind, expression) in [
        ("ApplyConfiguration", "1"),
        ("ApplyConfiguration", "Object.spec{}"),
        ("ApplyConfiguration", "Other{}"),
        ("ApplyConfiguration", "Object{a: params.b}"),
        ("JSONPatch", "[1]"),
        ("JSONPatch", "[]"),
        ("JSONPatch", "JSONPatch{}"),
        ("JSONPatch", "[JSONPatch{op: 1}]"),
        ("JSONPatch", " [JSONPatch{path: object.}] "),
    ] {
        steps.push(write("mutating", &format!("{kind} {expression}"), &mutations(&[(kind, expression)])));
    }
    steps
}
