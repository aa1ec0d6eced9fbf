//! Expressions that were never seen before.

use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Value as Json, json};

use crate::fuzzing::{cost_and_estimate, expression};

/// Pieces of which texts are made that are nearly expressions.
const PIECES: &[&str] = &[
    "self",
    ".name",
    ".count",
    ".items",
    ".labels",
    ".any",
    ".names",
    ".at",
    ".after",
    ".data",
    ".port",
    ".ratio",
    ".?name",
    "[0]",
    "[?0]",
    "['a']",
    "any",
    "x",
    "k",
    "v",
    "1",
    "-1",
    "9223372036854775807",
    "2u",
    "1.5",
    "1e308",
    "'a'",
    "'äß👑'",
    "b'\\xff'",
    "null",
    "true",
    "false",
    "[",
    "]",
    "(",
    ")",
    "{",
    "}",
    ",",
    ":",
    "?",
    " ? ",
    " : ",
    " && ",
    " || ",
    "!",
    "-",
    " + ",
    " - ",
    " * ",
    " / ",
    " % ",
    " == ",
    " != ",
    " < ",
    " >= ",
    " in ",
    ".all(x, ",
    ".exists(x, ",
    ".exists_one(x, ",
    ".map(x, ",
    ".filter(x, ",
    ".sortBy(x, ",
    ".all(k, v, ",
    ".transformList(k, v, ",
    ".transformMap(k, v, ",
    ".optMap(x, ",
    ".optFlatMap(x, ",
    "optional.of(",
    "optional.none()",
    ".orValue(",
    ".or(",
    ".hasValue()",
    ".value()",
    "has(",
    "size(",
    "int(",
    "uint(",
    "double(",
    "string(",
    "bytes(",
    "type(",
    "dyn(",
    "duration('1h')",
    "timestamp('2020-01-01T00:00:00Z')",
    ".getHours('Europe/Berlin')",
    ".split('a')",
    ".join(',')",
    ".format([",
    ".replace('a', 'b')",
    ".substring(1)",
    ".indexOf('b', ",
    ".charAt(",
    ".lowerAscii()",
    ".trim()",
    ".matches('a+b')",
    ".find('[')",
    ".findAll('.', ",
    ".reverse()",
    ".min()",
    ".max()",
    ".sum()",
    ".isSorted()",
    ".distinct()",
    ".flatten(",
    ".slice(0, ",
    "lists.range(",
    ".first()",
    "sets.contains(",
    "sets.intersects(",
    "url('https://a:1/b?c=d')",
    ".getQuery()",
    "ip('::1')",
    "cidr('10.0.0.0/8')",
    ".containsIP(",
    "quantity('1Ki')",
    ".add(",
    ".isGreaterThan(",
    ".compareTo(",
    "semver('1.2.3')",
    ".major()",
    "format.named('dns1123Label')",
    ".value().validate(",
    "jsonpatch.escapeKey(",
    "Object{",
    "JSONPatch{op: 'add'}",
    " ",
    "\n",
    "// x\n",
    "`a`",
    "\u{e9}",
    "\\",
];

fn json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<u64>().prop_map(Json::from),
        any::<f64>().prop_map(Json::from),
        "[a-z0-9äß👑:/.-]{0,9}".prop_map(Json::from),
    ];
    let names = || {
        select(vec![
            "name", "count", "ratio", "on", "port", "at", "after", "data", "names", "items", "labels", "any", "k", "v",
            "a",
        ])
    };
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Json::from),
            vec((names(), inner), 0..8).prop_map(|fields| fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()),
        ]
    })
}

/// A value as the schema wants it.
fn fitting() -> impl Strategy<Value = Json> {
    let text = || "[a-zäß]{0,9}";
    (any::<i32>(), vec(text(), 0..9), vec((text(), any::<i16>()), 0..9), vec((text(), text()), 0..9), text()).prop_map(
        |(count, names, items, labels, name)| {
            let items: Vec<Json> = items.into_iter().map(|(k, v)| json!({"k": k, "v": v})).collect();
            let labels: serde_json::Map<String, Json> =
                labels.into_iter().map(|(key, value)| (key, Json::from(value))).collect();
            json!({"name": name, "count": count, "ratio": 1.5, "on": count > 0, "port": 80, "names": names, "items": items,
                "labels": labels, "at": "2020-01-01T00:00:00Z", "after": "1h", "data": "eA=="})
        },
    )
}

/// Expressions without errors of types: a bool, a number and a text.
fn typed() -> impl Strategy<Value = [String; 3]> {
    let leaf = (
        select(vec!["self.on", "true", "self.count > 3", "has(self.name)", "'a' in self.names", "self.port == 80"]),
        select(vec!["self.count", "1", "size(self.items)", "self.items[0].v", "self.name.size()", "self.count / 0"]),
        select(vec!["self.name", "'ä'", "self.names[1]", "self.labels['a']", "string(self.count)"]),
    );
    leaf.prop_map(|(bool, number, text)| [bool, number, text].map(str::to_owned)).prop_recursive(4, 24, 3, |inner| {
        (inner.clone(), inner, 0_usize..6, 0_usize..5, 0_usize..5).prop_map(
            |([b, n, t], [b2, n2, t2], bool, number, text)| {
                [
                    match bool {
                        0 => format!("({b} && {b2})"),
                        1 => format!("({b} || {n} < {n2})"),
                        2 => format!("self.names.all(x, x == {t} || {b})"),
                        3 => format!("self.items.exists(x, x.v == {n})"),
                        4 => format!("!({t} == {t2})"),
                        _ => format!("self.labels.exists_one(k, {b} && k != {t})"),
                    },
                    match number {
                        0 => format!("({n} + {n2})"),
                        1 => format!("({b} ? {n} : {n2})"),
                        2 => format!("self.items.filter(x, {b}).size()"),
                        3 => format!("{t}.indexOf({t2})"),
                        _ => format!("self.items.map(x, x.v + {n}).sum()"),
                    },
                    match text {
                        0 => format!("({t} + {t2})"),
                        1 => format!("({b2} ? {t} : {t2})"),
                        2 => format!("{t}.lowerAscii()"),
                        3 => format!("[{t}, {t2}][0]"),
                        _ => format!("self.?name.orValue({t})"),
                    },
                ]
            },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_text_and_any_value_are_met_with_a_verdict(text in "\\PC{0,40}", json in json()) {
        expression(&text, &json);
    }

    #[test]
    fn pieces_in_any_order_are_met_with_a_verdict(pieces in vec(select(PIECES), 1..12), json in json()) {
        expression(&pieces.concat(), &json);
    }

    #[test]
    fn expressions_of_the_right_types_compile_and_evaluate(texts in typed(), fits in fitting(), json in json()) {
        for text in &texts {
            cost_and_estimate(text, &json).expect("no errors of types");
            let (cost, estimate) = cost_and_estimate(text, &fits).expect("no errors of types");
            // The estimate of an operator may be less than it costs, by what its operands themselves cost; as upstream's.
            prop_assert!(cost <= estimate.max.saturating_mul(2), "{text} of {fits}: {cost} > {estimate:?}");
        }
    }
}
