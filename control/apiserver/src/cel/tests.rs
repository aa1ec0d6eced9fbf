//! What expressions can name and how they are evaluated. The tables are those of upstream's `compile_test.go` and
//! `composition_test.go`.

use serde_json::{Value, json};
use windlass_cel::{OUT_OF_BUDGET, RUNTIME_COST_BUDGET as BUDGET, ResourceAttributes, Value as CelValue};

use super::*;

/// Compiles a validation, and the same as a value of the audit log.
fn compiled(expression: &str, has_params: bool) -> [Result<(), String>; 2] {
    let compiler = Compiler::new(has_params, false);
    let text = format!("string({expression})");
    [compiler.compile(expression, Wanted::Bool), compiler.compile(&text, Wanted::Annotation)].map(|done| done.map(drop))
}

#[test]
fn expressions_name_what_admission_knows() {
    for (expression, has_params) in [
        ("object.foo < params.x", true),
        ("namespaceObject.metadata.name.startsWith('test')", true),
        ("object.foo == oldObject.foo", false),
        ("object == null || oldObject == null || object.foo == oldObject.foo", false),
        ("object.spec.string.matches('[0-9]+')", false),
        ("object.spec.string.findAll('[0-9]+').size() > 0", false),
        ("object.spec.list.isSorted()", false),
        ("url(object.spec.endpoint).getHostname() in ['ok1', 'ok2']", false),
        ("request.kind.group == 'example.com' && request.kind.version == 'v1' && request.kind.kind == 'Fake'", false),
        ("request.resource.resource == 'fake' && request.subResource == 'scale'", false),
        ("request.requestKind.kind == 'Fake'", false),
        ("request.requestResource.resource == 'fake' && request.requestSubResource == 'scale'", false),
        ("request.name == 'fake-name' && request.namespace == 'fake-namespace'", false),
        ("request.operation == 'CREATE'", false),
        ("request.userInfo.username == 'admin' && request.userInfo.uid == '014fbff9a07c'", false),
        ("request.userInfo.groups == ['system:authenticated', 'my-admin-group']", false),
        ("request.userInfo.extra == {'some-key': ['some-value1', 'some-value2']}", false),
        ("request.dryRun == false", false),
        ("request.options == {'whatever': 'you want'}", false),
        ("authorizer.group('') != null", false),
        ("authorizer.requestResource.check('breakglass').allowed()", false),
        ("namespaceObject.metadata != null", false),
        ("'test' in namespaceObject.metadata.labels", false),
        ("namespaceObject.metadata.UID == '12345'", false),
        ("type(namespaceObject.metadata.creationTimestamp) == google.protobuf.Timestamp", false),
        ("namespaceObject.metadata.deletionGracePeriodSeconds == 5", false),
        ("namespaceObject.metadata.finalizers[0] == 'testEnv'", false),
        ("namespaceObject.spec.finalizers[0] == 'testEnv'", false),
        ("namespaceObject.status.conditions[0].type == 'NamespaceDeletionDiscoveryFailure'", false),
        ("type(namespaceObject.status.conditions[0].lastTransitionTime) == google.protobuf.Timestamp", false),
    ] {
        assert_eq!(compiled(expression, has_params), [Ok(()), Ok(())], "{expression}");
    }
}

#[test]
fn what_is_wrong_with_an_expression_is_said_in_upstreams_words() {
    for (expression, wanted) in [
        ("1 < 'asdf'", "found no matching overload for '_<_' applied to '(int, string)"),
        ("'asdf'.contains('x'", "Syntax error: missing ')' at"),
        ("object.foo < params.x", "undeclared reference to 'params'"),
        ("object.foo < invalid.x", "undeclared reference to 'invalid'"),
        ("variables.a == 1", "undeclared reference to 'variables'"),
        ("request.foo1 == 'nope'", "undefined field 'foo1'"),
        ("request.resource.foo2 == 'nope'", "undefined field 'foo2'"),
        ("request.userInfo.foo5 == 'nope'", "undefined field 'foo5'"),
        ("namespaceObject.metadata.foo2 == 'nope'", "undefined field 'foo2'"),
        ("namespaceObject.status.conditions[0].foo5 == 'nope'", "undefined field 'foo5'"),
        ("test() == true", "undeclared reference to 'test'"),
    ] {
        for done in compiled(expression, false) {
            let why = done.unwrap_err();
            assert!(why.starts_with("compilation failed: ") && why.contains(wanted), "{expression}: {why}");
        }
    }
    let compiler = Compiler::new(false, true);
    for (expression, wanted, message) in [
        ("1", Wanted::Bool, "must evaluate to bool but got int"),
        ("null", Wanted::Message, "must evaluate to string but got null_type"),
        ("1", Wanted::Annotation, "must evaluate to one of [string null_type] but got int"),
        ("\"I'm a teapot!\"", Wanted::Object, "must evaluate to Object but got string"),
        ("Object.spec.metadata{}", Wanted::Object, "must evaluate to Object but got Object.spec.metadata"),
        ("[1]", Wanted::JsonPatch, "must evaluate to list(JSONPatch) but got list(int)"),
        ("duration('1s')", Wanted::Bool, "must evaluate to bool but got google.protobuf.Duration"),
    ] {
        assert_eq!(compiler.compile(expression, wanted).map(drop).unwrap_err(), message, "{expression}");
    }
    let message = compiler.compile("string(authorizer.group('') != null)", Wanted::Message).map(drop).unwrap_err();
    assert!(message.contains("undeclared reference to 'authorizer'"), "{message}");
}

/// Evaluates an expression about an object with variables, within a budget.
fn evaluated(variables: &[(&str, &str)], expression: &str, budget: u64) -> Result<bool, String> {
    let mut compiler = Compiler::new(false, true);
    for (name, expression) in variables {
        let _ = compiler.add_variable(name, expression);
    }
    let expression = compiler.expression(expression, Wanted::Bool);
    let composition = compiler.into_composition();
    let object = json!({"metadata": {"name": "endpoints1"}, "subsets": [{"addresses": [{"ip": "127.0.0.0"}]}]});
    let inputs = Inputs {
        object: &object,
        old: &Value::Null,
        request: &Value::Null,
        namespace: &Value::Null,
        params: &Value::Null,
        authorizer: None,
        resource: ResourceAttributes::default(),
        effort: None,
    };
    let scope = Scope::new(&inputs, Some(&composition));
    let mut left = budget;
    let value = expression.evaluate(scope.enter(), &mut left).ok_or(OUT_OF_BUDGET)??;
    Ok(matches!(value, CelValue::Bool(true)))
}

#[test]
fn variables_are_evaluated_when_they_are_needed() {
    let name = &[("name", "object.metadata.name")][..];
    let is_it = "variables.name == 'endpoints1'";
    let twice = "variables.name == 'endpoints1' && variables.name == 'endpoints1' ";
    let list = &[("list", "[1, 2, 3, 4]")][..];
    for (variables, expression, budget, wanted) in [
        (name, is_it, BUDGET, Ok(true)),
        (
            &[("name", "1 == '1'")],
            is_it,
            BUDGET,
            Err("found no matching overload for '_==_' applied to '(int, string)'"),
        ),
        (
            &[("count", "object.subsets[114514].addresses.size()")],
            "variables.count == 810",
            BUDGET,
            Err("composited variable \"count\" fails to evaluate: index out of bounds: 114514"),
        ),
        // Enough for one of the two alone.
        (name, is_it, 4, Err("running out of cost budget")),
        // Enough for one evaluation of the variable.
        (name, twice, 10, Ok(true)),
        (name, twice, 8, Err("running out of cost budget")),
        (&[("fortuneTelling", "true")], "variables.fortuneTelling", BUDGET, Ok(true)),
        (list, "variables.list.sum() == 10", BUDGET, Ok(true)),
        (&[("dict", "{\"foo\": \"bar\"}")], "variables.dict['foo'].contains('bar')", BUDGET, Ok(true)),
        (
            list,
            "variables.list['invalid'] == 'invalid'",
            BUDGET,
            Err("found no matching overload for '_[_]' applied to '(list(int), string)'"),
        ),
        (
            &[("list", "['1', '2', '3', '4']")],
            "variables.list[0] == 1",
            BUDGET,
            Err("found no matching overload for '_==_' applied to '(string, int)'"),
        ),
        (
            &[("dict", "'abc 123 def 123'.split(' ')")],
            "size(variables.dict) > 0",
            5,
            Err("validation failed due to running out of cost budget, no further validation rules will be run"),
        ),
        // Each can name those before it, and no other.
        (&[("a", "1"), ("b", "variables.a + 1")], "variables.b == 2", BUDGET, Ok(true)),
        (
            &[("a", "variables.b"), ("b", "1")],
            "variables.a == 1",
            BUDGET,
            Err("composited variable \"a\" fails to compile"),
        ),
        (name, "variables.other == 1", BUDGET, Err("undefined field 'other'")),
        // The last one of a name counts; one that so comes to be its own value has none.
        (&[("a", "1"), ("a", "2")], "variables.a == 2", BUDGET, Ok(true)),
        (&[("a", "1"), ("a", "variables.a + 1")], "variables.a == 2", BUDGET, Err("refers to itself")),
    ] {
        match (evaluated(variables, expression, budget), wanted) {
            (Ok(value), Ok(wanted)) => assert_eq!(value, wanted, "{expression}"),
            (Err(why), Err(wanted)) => assert!(why.contains(wanted), "{expression}: {why}"),
            (done, wanted) => panic!("{expression}: {done:?}, not {wanted:?}"),
        }
    }
}

#[test]
fn a_false_condition_decides_unless_all_cost_too_much() {
    let (object, nothing) = (json!({"a": 1}), Value::Null);
    let request = json!({"resource": {"version": "v1"}, "requestResource": {"version": "v2"}});
    let inputs = Inputs {
        object: &object,
        old: &nothing,
        request: &request,
        namespace: &object,
        params: &nothing,
        authorizer: None,
        resource: ResourceAttributes::default(),
        effort: None,
    };
    let matches = |expressions: &[&str]| {
        let conditions: Vec<Value> = expressions.iter().map(|text| json!({"expression": text})).collect();
        Conditions::read(&conditions).matches(&inputs, None)
    };
    assert_eq!(matches(&[]), Matches::Yes);
    assert_eq!(matches(&["object.a == 1", "true"]), Matches::Yes);
    assert_eq!(matches(&["request.resource.version == 'v2'", "namespaceObject == null"]), Matches::Yes);
    assert_eq!(matches(&["object.b == 1", "object.a == 2"]), Matches::No);
    let missing = "expression 'object.b == 1' resulted in error: no such key: b";
    assert_eq!(matches(&["object.b == 1", "true"]), Matches::Unknown(missing.to_owned()));
    let limit = "[1,2,3,4,5,6,7,8,9,10]";
    let dear = format!("{limit}.all(a, {limit}.all(b, {limit}.all(c, {limit}.all(d, {limit}.all(e, a+b+c+d+e > 0)))))");
    let found = matches(&["false", &dear, &dear, &dear]);
    assert_eq!(found, Matches::Unknown(OUT_OF_BUDGET.to_owned()));
}
