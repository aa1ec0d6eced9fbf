//! Settings of the audit log. Pure.

use std::path::PathBuf;

use windlass_control::AuditConfig;

/// The settings, by upstream's names.
#[derive(Debug, Clone)]
pub(crate) struct AuditSettings {
    /// The file of events; `None` for none.
    pub(crate) log_path: Option<PathBuf>,
    pub(crate) policy_file: Option<PathBuf>,
    /// In MiB.
    pub(crate) log_max_size: u64,
    pub(crate) log_max_backup: usize,
    /// In days; 0 for no limit.
    pub(crate) log_max_age: u32,
}

impl Default for AuditSettings {
    fn default() -> Self {
        Self { log_path: None, policy_file: None, log_max_size: 100, log_max_backup: 10, log_max_age: 0 }
    }
}

impl AuditSettings {
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.log_max_size == 0 {
            problems.push("auditLogMaxSize must be more than nothing".to_owned());
        }
        if self.policy_file.is_some() && self.log_path.is_none() {
            problems.push("auditPolicyFile has no effect without auditLogPath".to_owned());
        }
        problems
    }

    /// The configuration of the log, if there is one.
    pub(crate) fn config(&self) -> Option<AuditConfig> {
        Some(AuditConfig {
            path: self.log_path.clone()?,
            policy: self.policy_file.clone(),
            max_size: self.log_max_size,
            max_backups: self.log_max_backup,
            max_age_days: self.log_max_age,
        })
    }
}
