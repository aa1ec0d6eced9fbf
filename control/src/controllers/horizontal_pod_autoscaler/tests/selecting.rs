//! Autoscalers that share pods, and selectors as text.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::{Value, json};

use super::pod;
use crate::controllers::{
    horizontal_pod_autoscaler::{messages::SelectorProblem, selectors::Selectors},
    label_selector::{go_selector, parse, text},
    runtime::Key,
};

#[test]
fn autoscalers_of_the_same_pods_are_found() {
    let mut selectors = Selectors::default();
    let web = [pod("p", &json!({"metadata": {"labels": {"app": "web", "tier": "front"}}}))];
    let [one, two, elsewhere] =
        [("default", "one"), ("default", "two"), ("other", "two")].map(|(namespace, name)| Key::new(namespace, name));
    assert_eq!(selectors.controlling("default", &web), []);
    selectors.set(&one, &parse("app=web").unwrap());
    selectors.set(&two, &parse("app=api").unwrap());
    selectors.set(&elsewhere, &parse("app=web").unwrap());
    assert_eq!(selectors.controlling("default", &web), std::slice::from_ref(&one));
    selectors.set(&two, &parse("tier in (front,back),app").unwrap());
    let both = selectors.controlling("default", &web);
    assert_eq!(both, [one.clone(), two.clone()]);
    let problem = SelectorProblem::Ambiguous { selector: "app=web".to_owned(), autoscalers: both };
    let message = "pods by selector app=web are controlled by multiple HPAs: [default/one default/two]";
    assert_eq!(problem.text(), message);
    selectors.forget(&one);
    assert_eq!(selectors.controlling("default", &web), [two]);
    assert_eq!(selectors.controlling("default", &[]), []);
}

#[test]
fn selectors_are_written_and_read() {
    for written in ["a=b", "a=b,c in (d,e),f,!g", "a notin (b)"] {
        assert_eq!(text(&parse(written).unwrap()), written);
    }
    let why = "couldn't parse the selector string \"a=b c\": found 'c', expected: ',' or 'end of string'";
    assert_eq!(parse("a=b c").unwrap_err(), why);
    assert_eq!(parse("n>5").unwrap_err(), "\"gt\" isn't supported in label selectors");
}

#[test]
fn go_writes_selectors_so() {
    let selector = |value: Value| serde_json::from_value::<LabelSelector>(value).unwrap();
    assert_eq!(go_selector(None), "nil");
    let all = selector(json!({"matchLabels": {"b": "1", "a": ""},
        "matchExpressions": [{"key": "c", "operator": "In", "values": ["x", "y"]}]}));
    assert_eq!(
        go_selector(Some(&all)),
        "&LabelSelector{MatchLabels:map[string]string{a: ,b: 1,},\
         MatchExpressions:[]LabelSelectorRequirement{LabelSelectorRequirement{Key:c,Operator:In,Values:[x y],},},}"
    );
    let exists = selector(json!({"matchExpressions": [{"key": "e", "operator": "Exists"}]}));
    assert_eq!(
        go_selector(Some(&exists)),
        "&LabelSelector{MatchLabels:map[string]string{},\
         MatchExpressions:[]LabelSelectorRequirement{LabelSelectorRequirement{Key:e,Operator:Exists,Values:[],},},}"
    );
    assert_eq!(
        go_selector(Some(&LabelSelector::default())),
        "&LabelSelector{MatchLabels:map[string]string{},MatchExpressions:[]LabelSelectorRequirement{},}"
    );
}
