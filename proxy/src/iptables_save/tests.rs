use super::*;

#[test]
fn saved_text_is_read_and_nonsense_refused() {
    let text = "# by x\n*nat\n:PREROUTING ACCEPT [3:4]\n:KUBE-X - [0:0]\n[7:420] -A PREROUTING -j KUBE-X\n-A KUBE-X -j RETURN\nCOMMIT\n\
                *filter\n:INPUT DROP [0:0]\nCOMMIT\n";
    let saved = SavedRuleset::parse(text).unwrap();
    let chain = saved.chain(Table::Nat, "PREROUTING").unwrap();
    assert_eq!((chain.policy, chain.rules[0].packets, chain.rules[0].text), ("ACCEPT", 7, "-j KUBE-X"));
    assert_eq!(saved.chain(Table::Filter, "INPUT").unwrap().policy, "DROP");
    for (bad, line) in [
        ("*nat\n", 1),
        ("-A X\n", 1),
        ("*nat\njunk\nCOMMIT\n", 2),
        ("*nat\nCOMMIT\ntrail\n", 3),
        ("*a\n*b\n", 2),
        ("*nat\n:\nCOMMIT\n", 2),
    ] {
        assert_eq!(SavedRuleset::parse(bad).unwrap_err().line, line, "{bad}");
    }
}

#[test]
fn what_is_written_and_what_is_printed_are_the_same() {
    let pairs = [
        (
            "-m comment --comment \"a b\" -m tcp -p tcp -d 172.30.0.41 --dport 80 -j X",
            "-d 172.30.0.41/32 -p tcp -m comment --comment \"a b\" -m tcp --dport 80 -j X",
        ),
        ("-m mark ! --mark 0x00004000/0x00004000 -j RETURN", "-m mark ! --mark 0x4000/0x4000 -j RETURN"),
        ("-j MARK --or-mark 0x00004000", "-j MARK --set-xmark 0x4000/0x4000"),
        ("-j MARK --xor-mark 0x00004000", "-j MARK --set-xmark 0x4000/0x0"),
        (
            "-m statistic --mode random --probability 0.3333333333 -j X",
            "-m statistic --mode random --probability 0.33333333349 -j X",
        ),
        ("-m recent --name S --set -j X", "-m recent --set --name S --mask 255.255.255.255 --rsource -j X"),
        ("-d ::5 -j REJECT", "-d ::5/128 -j REJECT --reject-with icmp6-port-unreachable"),
        (
            "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
            "-m conntrack ! --ctstate DNAT,RELATED,ESTABLISHED -j DROP",
        ),
    ];
    for (written, printed) in pairs {
        assert_eq!(canonical(written), canonical(printed));
    }
    assert_ne!(canonical("! -s 10.0.0.0/8 -j X"), canonical("-s 10.0.0.0/8 -j X"));
    assert_ne!(canonical("-s 10.0.0.1 -j X"), canonical("-s 10.0.0.2 -j X"));
}

#[test]
fn an_option_without_a_value_is_kept_as_it_is() {
    for option in ["--mark", "--set-xmark", "--or-mark", "-s", "--probability", "--ctstate", "! -d"] {
        assert_eq!(canonical(&format!("-j X {option}")), {
            let mut expected = [option.to_owned(), "-j X".to_owned()];
            expected.sort_unstable();
            expected
        });
    }
}

#[test]
fn jumps_are_recognised_in_both_spellings() {
    for jump in &JUMPS {
        assert!(is_jump(&jump.rule(), jump), "{}", jump.rule());
        assert_eq!(JUMPS.iter().filter(|j| j.from == jump.from && is_jump(&jump.rule(), j)).count(), 1);
    }
    assert!(is_jump(
        "-m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES",
        &JUMPS[3]
    ));
    assert!(!is_jump("-j KUBE-SERVICES", &JUMPS[10]));
    assert_eq!(SavedRuleset::default().missing_jumps().len(), JUMPS.len());
}

proptest::proptest! {
    #[test]
    fn no_text_breaks_the_parser(text in "(\\*nat\n)?([:\\-A-Z \"!\\\\\\[\\]0-9\n]{0,80}(COMMIT\n)?){0,4}") {
        if let Ok(saved) = SavedRuleset::parse(&text) {
            let _ = saved.missing_jumps();
            for chain in saved.tables.values().flat_map(BTreeMap::values) {
                for rule in &chain.rules {
                    let _ = canonical(rule.text);
                }
            }
        }
    }
}
