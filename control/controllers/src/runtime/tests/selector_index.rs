use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use proptest::prelude::*;
use windlass_kit::objects::label_selector::Selector;

use crate::runtime::{key::Key, selector_index::SelectorIndex};

fn pairs(list: &[(u8, u8)]) -> BTreeMap<String, String> {
    list.iter().map(|(k, v)| (format!("k{k}"), format!("v{v}"))).collect()
}

fn selector() -> impl Strategy<Value = LabelSelector> {
    let pair = || (0u8..4, 0u8..3);
    let operator = prop::sample::select(vec!["In", "NotIn", "Exists", "DoesNotExist"]);
    let expression = (0u8..4, operator, prop::collection::vec(0u8..3, 0..3));
    (prop::collection::vec(pair(), 0..3), prop::collection::vec(expression, 0..3)).prop_map(|(labels, expressions)| {
        let expressions = expressions.into_iter().map(|(key, operator, values)| LabelSelectorRequirement {
            key: format!("k{key}"),
            operator: operator.to_owned(),
            values: Some(values.iter().map(|v| format!("v{v}")).collect()),
        });
        LabelSelector { match_labels: Some(pairs(&labels)), match_expressions: Some(expressions.collect()) }
    })
}

#[test]
fn a_pair_that_all_selectors_share_brings_no_candidates_together() {
    let mut index = SelectorIndex::default();
    let selector =
        |i: usize| BTreeMap::from([("a-tier".to_owned(), "prod".to_owned()), ("app".to_owned(), i.to_string())]);
    for i in 0..1000 {
        index.set(&Key::new("n", format!("s{i}")), Some(Selector::from(&selector(i))));
    }
    let found = index.candidates("n", [&selector(500)]);
    assert!(found.len() <= 2 && found.contains(&Key::new("n", "s500")), "{found:?}");
    assert!(index.candidates("other", [&selector(500)]).is_empty());
}

proptest! {
    /// Every selector that matches is a candidate, after any changes; none is left when all are removed.
    #[test]
    fn no_match_is_missed(
        changes in prop::collection::vec((0u8..6, prop::option::of(selector())), 0..40),
        labels in prop::collection::vec((0u8..4, 0u8..3), 0..5),
    ) {
        let (mut index, mut selectors) = (SelectorIndex::default(), BTreeMap::new());
        for (name, selector) in changes {
            let key = Key::new("n", format!("s{name}"));
            index.set(&key, selector.as_ref().map(Selector::from));
            match selector {
                Some(selector) => drop(selectors.insert(key, selector)),
                None => drop(selectors.remove(&key)),
            }
        }
        let labels = pairs(&labels);
        let found = index.candidates("n", [&labels]);
        for (key, selector) in &selectors {
            let selector = Selector::from(selector);
            let matches = !selector.is_empty() && selector.matches(Some(&labels));
            prop_assert!(!matches || found.contains(key), "{key} is missing");
        }
        prop_assert!(found.iter().all(|key| selectors.contains_key(key)));
        selectors.keys().for_each(|key| index.set(key, None));
        prop_assert!(index.is_empty());
    }
}
