//! OOM kills in the kernel log.

/// A process that the OOM killer has killed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kill {
    /// `CONSTRAINT_NONE` when the machine was out of memory, `CONSTRAINT_MEMCG` when a cgroup was at its limit.
    pub constraint: String,
    /// The cgroup whose limit was hit; `/` for the machine.
    pub limited: String,
    /// The cgroup that the process was in.
    pub cgroup: String,
    /// Name of the process; empty with old kernels, which log it separately.
    pub name: String,
    /// Its process id; 0 with old kernels, which log it separately.
    pub pid: i64,
}

/// Parses one record of `/dev/kmsg`: `6,1234,5678,-;oom-kill:constraint=…,task_memcg=…,task=name,pid=1,uid=0`, or,
/// before Linux 5.0, `…;Task in /a killed as a result of limit of /b`.
pub(crate) fn kill(record: &str) -> Option<Kill> {
    let text = record.split_once(';')?.1.lines().next()?;
    if let Some(rest) = text.strip_prefix("Task in ") {
        let (cgroup, limited) = rest.split_once(" killed as a result of limit of ")?;
        return Some(Kill {
            constraint: "CONSTRAINT_MEMCG".to_owned(),
            limited: limited.trim_end().to_owned(),
            cgroup: cgroup.to_owned(),
            ..Kill::default()
        });
    }
    let fields = text.strip_prefix("oom-kill:constraint=")?;
    let (constraint, fields) = fields.split_once(',')?;
    // A name may contain a comma, so fields are split from the end.
    let (before, after) = fields.rsplit_once(",pid=")?;
    let (before, name) = before.rsplit_once(",task=")?;
    let field = |key: &str| {
        let from = before.find(key)? + key.len();
        before.get(from..)?.split(',').next()
    };
    Some(Kill {
        constraint: constraint.to_owned(),
        limited: field("oom_memcg=").unwrap_or("/").to_owned(),
        cgroup: field("task_memcg=").unwrap_or("/").to_owned(),
        name: name.to_owned(),
        pid: after.split(',').next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_and_old_words_are_read() {
        let line = |constraint: &str, task: &str| {
            format!(
                "6,1234,5678,-;oom-kill:constraint={constraint},nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/docker/a,\
                 task_memcg=/docker/a/b,task={task},pid=4242,uid=0\n SUBSYSTEM=x\n"
            )
        };
        let found = kill(&line("CONSTRAINT_MEMCG", "a,b")).unwrap();
        assert_eq!((found.constraint.as_str(), found.limited.as_str()), ("CONSTRAINT_MEMCG", "/docker/a"));
        assert_eq!((found.cgroup.as_str(), found.name.as_str(), found.pid), ("/docker/a/b", "a,b", 4242));
        let global = "6,1,2,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,\
                      task_memcg=/user.slice,task=stress,pid=1,uid=0";
        let found = kill(global).unwrap();
        assert_eq!((found.limited.as_str(), found.cgroup.as_str()), ("/", "/user.slice"));
        let old = kill("6,1,2,-;Task in /docker/a/b killed as a result of limit of /docker/a\n").unwrap();
        assert_eq!((old.cgroup.as_str(), old.limited.as_str(), old.pid), ("/docker/a/b", "/docker/a", 0));
        for text in ["", "6,1,2,-;something else", "6,1,2,-;oom-kill:constraint=CONSTRAINT_NONE,task=x"] {
            assert_eq!(kill(text), None, "{text}");
        }
    }
}
