//! Names and addresses of upstream's own tests.

use windlass_fixtures::facts::{rows, text_of};

use super::*;

static NAMES: &str = include_str!("../../../../../../../facts/names.tsv");
static ADDRESSES: &str = include_str!("../../../../../../../facts/addresses.tsv");

#[test]
fn names_are_checked_as_upstreams_tests_say() {
    let path = |text: &str| domain_prefixed_path(text).map(|(_, why)| why);
    let mut seen = 0;
    for row in rows(NAMES) {
        let check: &dyn Fn(&str) -> Option<String> = match row[0] {
            "TestIsValidPortName" => &port_name,
            "TestIsConfigMapKey" => &config_key,
            "TestIsWildcardDNS1123Subdomain" => &wildcard_subdomain,
            "TestIsRelaxedEnvVarName" => &variable,
            "TestIsDomainPrefixedPath" => &path,
            // Those of apimachinery are checked there, others have no function of their own here.
            _ => continue,
        };
        let text = text_of(row[1]);
        // An empty one is reported as missing first.
        if !text.is_empty() {
            assert_eq!(check(&text).is_none(), row[2] == "good", "{row:?}");
        }
        seen += 1;
    }
    assert!(seen > 100, "{seen}");
}

/// Whether the message contains the part that upstream's tests expect.
fn told(found: Option<String>, expected: &str) -> bool {
    found.map_or(expected.is_empty(), |found| !expected.is_empty() && found.contains(expected))
}

#[test]
fn addresses_are_checked_as_upstreams_tests_say() {
    let (mut seen, mut wrong) = (0, Vec::new());
    for row in rows(ADDRESSES) {
        let text = |at: usize| text_of(row[at]);
        let fits = match row[0] {
            "TestIsValidIP" => told(canonical_ip(&text(1)), &text(2)) && told(ip(&text(1)), &text(4)),
            "TestIsValidCIDR" => told(cidr(&text(1)), &text(4)),
            "TestGetWarningsForIP" => ip_warning(row[1], &text(2)).into_iter().collect::<Vec<_>>() == listed(row[3]),
            "TestGetWarningsForCIDR" => cidr_warning(row[1], &text(2)) == listed(row[3]),
            _ => panic!("{row:?}"),
        };
        // What older fields take is what everybody here reads of them.
        let old = match row[0] {
            "TestIsValidIP" => parse_ip(&text(1)).is_some() == text(3).is_empty(),
            "TestIsValidCIDR" => Cidr::parse(&text(1)).is_some() == text(3).is_empty(),
            _ => true,
        };
        if !fits || !old {
            wrong.push(format!("{row:?}: {:?} {:?} {:?}", ip(&text(1)), canonical_ip(&text(1)), cidr(&text(1))));
        }
        seen += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 55, "{seen}");
}

fn listed(cell: &str) -> Vec<String> {
    serde_json::from_str(cell).unwrap()
}
