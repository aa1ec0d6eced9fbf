//! Names of upstream's own tests.

use windlass_fixtures::facts::{rows, text_of};

use super::*;

static TABLE: &str = include_str!("../../../facts/names.tsv");

#[test]
fn as_upstreams_tests_say() {
    let mut seen = 0;
    for row in rows(TABLE) {
        let check: fn(&str) -> Option<String> = match row[0] {
            "TestIsDNS1123Label" => label,
            "TestIsDNS1123Subdomain" => subdomain,
            "TestIsDNS1035Label" => dns1035_label,
            "TestIsQualifiedName" => qualified,
            "TestIsValidLabelValue" => label_value,
            // Checks of the kinds that need them.
            _ => continue,
        };
        assert_eq!(check(&text_of(row[1])).is_none(), row[2] == "good", "{row:?}");
        seen += 1;
    }
    assert!(seen > 230, "{seen}");
}
