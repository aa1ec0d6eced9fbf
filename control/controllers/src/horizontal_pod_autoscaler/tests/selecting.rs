//! Autoscalers that share pods.

use serde_json::json;
use windlass_kit::objects::label_selector::parse;

use super::pod;
use crate::{
    horizontal_pod_autoscaler::{messages::SelectorProblem, selectors::Selectors},
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
