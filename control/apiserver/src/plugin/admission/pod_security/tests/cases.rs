//! The recorded cases. The test target `recordings` reads and writes them with this file, too.

use serde_json::Value;

/// What was recorded.
pub(crate) struct Recorded<'a> {
    /// The lines that say what the file is.
    pub(crate) header: Vec<&'a str>,
    /// All levels, each as `LEVEL:VERSION`.
    pub(crate) levels: Vec<&'a str>,
    pub(crate) cases: Vec<Case<'a>>,
}

/// A pod with what is said of it.
pub(crate) struct Case<'a> {
    pub(crate) name: &'a str,
    /// In JSON.
    pub(crate) pod: &'a str,
    /// What is said at each level, in their order; empty where the pod is allowed.
    pub(crate) said: Vec<String>,
}

/// A line of a table has levels that share a message; this stands for all.
const ALL: &str = "*";

impl<'a> Recorded<'a> {
    pub(crate) fn read(text: &'a str) -> Self {
        let header: Vec<&str> = text.lines().take_while(|line| line.starts_with('#')).collect();
        let mut lines = text.lines().skip(header.len());
        let levels = lines.next().and_then(|line| line.strip_prefix("levels\t")).expect("levels");
        let levels: Vec<&str> = levels.split(' ').collect();
        let mut cases: Vec<Case<'_>> = Vec::new();
        for line in lines {
            if let Some(answer) = line.strip_prefix('\t') {
                let (of, message) = answer.split_once('\t').expect("levels and a message");
                let said = &mut cases.last_mut().expect("a pod comes first").said;
                for (level, said) in levels.iter().zip(said) {
                    if of == ALL || of.split(' ').any(|one| one == *level) {
                        message.clone_into(said);
                    }
                }
            } else {
                let (name, pod) = line.split_once('\t').expect("a name and a pod");
                cases.push(Case { name, pod, said: vec![String::new(); levels.len()] });
            }
        }
        Self { header, levels, cases }
    }

    /// As it is written.
    pub(crate) fn text(&self) -> String {
        let mut text: String = self.header.iter().map(|line| format!("{line}\n")).collect();
        text.push_str(&format!("levels\t{}\n", self.levels.join(" ")));
        for case in &self.cases {
            text.push_str(&format!("{}\t{}\n", case.name, case.pod));
            let mut written: Vec<&String> = Vec::new();
            for said in case.said.iter().filter(|said| !said.is_empty()) {
                if written.contains(&said) {
                    continue;
                }
                written.push(said);
                let of = self.levels.iter().zip(&case.said).filter(|(_, other)| *other == said);
                let of: Vec<&str> = of.map(|(level, _)| *level).collect();
                let of = if of.len() == self.levels.len() { ALL.to_owned() } else { of.join(" ") };
                text.push_str(&format!("\t{of}\t{said}\n"));
            }
        }
        text
    }
}

impl Case<'_> {
    pub(crate) fn object(&self) -> Value {
        serde_json::from_str(self.pod).expect("a pod in JSON")
    }
}
