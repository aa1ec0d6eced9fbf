use super::*;

fn problems_of(text: &str) -> Vec<String> {
    let mut settings = Settings::built_in().unwrap();
    settings.node_name = "node".to_owned();
    file::parse(text).unwrap().apply(&mut settings);
    settings.problems()
}

#[test]
fn an_empty_file_is_all_defaults() {
    for text in ["", "# only a comment\n", "apiVersion: windlass.io/v1alpha1\nkind: WindlassConfiguration\n"] {
        assert!(problems_of(text).is_empty(), "{text:?}");
    }
}

#[test]
fn unknown_and_wrong_settings_are_refused_by_name() {
    for (text, word) in [
        ("clusterCidr: 10.0.0.0/8\n", "clusterCidr"),
        ("nodeIP: not-an-ip\n", "nodeIP"),
        ("serviceCIDR: 10.96.0.1/16\n", "did you mean 10.96.0.0/16"),
        ("apiVersion: v9\n", "v9"),
        ("nodePortRange: 9-3\n", "nodePortRange"),
    ] {
        let error = format!("{:#}", file::parse(text).unwrap_err());
        assert!(error.contains(word), "{text:?}: {error}");
    }
}

#[test]
fn settings_that_contradict_each_other_are_all_reported() {
    let problems = problems_of("clusterCIDR: 10.96.0.0/12\ndataDir: relative\n");
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems.iter().any(|p| p.contains("overlap")) && problems.iter().any(|p| p.contains("dataDir")));
}
