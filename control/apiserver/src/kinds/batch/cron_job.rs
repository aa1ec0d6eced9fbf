//! CronJob. Pure; the time is a value.

use jiff::{Timestamp, tz::TimeZone};
use serde_json::{Map, Value, json};
use windlass_kit::objects::{
    pod_defaults::{child, set},
    schedule::Schedule,
};

use super::job;
use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::errors::Errors,
        types::{Definition, Generation, NAME, Resource, Subresource, Table, VersionSpec, age},
    },
    kinds::{
        shared::{
            cells::text,
            field::{Field, none_negative},
            selector,
            tables::{AGE, column, count, flag, wide},
            workload::{self, containers},
        },
        types,
    },
};

/// The longest name: the Jobs are named after it and eleven characters.
const MAX_NAME: usize = 52;
const ZONES: &str = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("batch", "cronjobs", "CronJob", CronJob);
    resource.short_names = vec!["cj".into()];
    resource.categories = vec!["all".into()];
    resource.generation = Generation::Counted;
    let mut v1 = VersionSpec::new("v1", types::built_in("batch/v1", "CronJob"));
    v1.subresources = vec![Subresource::status()];
    let columns = vec![
        NAME,
        column("Schedule", "When its Jobs begin."),
        column("Timezone", "The time zone of the schedule."),
        flag("Suspend", "Whether no more Jobs begin."),
        count("Active", "Jobs that run."),
        column("Last Schedule", "Time since the last Job should have begun."),
        AGE,
        wide("Containers", "Names of the template's containers."),
        wide("Images", "Images of the template's containers."),
        wide("Selector", "Labels of its pods."),
    ];
    v1.table = Table { columns, row: Box::new(row) };
    Definition::single(resource, v1)
}

fn row(object: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let job = &spec["jobTemplate"]["spec"];
    let [names, images] = containers(&job["template"]);
    let last = match text(&status["lastScheduleTime"]) {
        "" => "<none>".to_owned(),
        time => age(time, now),
    };
    vec![
        object["metadata"]["name"].clone(),
        spec["schedule"].clone(),
        json!(spec["timeZone"].as_str().unwrap_or("<none>")),
        json!(if spec["suspend"] == true { "True" } else { "False" }),
        json!(status["active"].as_array().map_or(0, Vec::len)),
        json!(last),
        json!(age(text(&object["metadata"]["creationTimestamp"]), now)),
        names,
        images,
        json!(selector::shown(&job["selector"])),
    ]
}

#[derive(Debug)]
struct CronJob;

impl Strategy for CronJob {
    fn default(&self, object: &mut Map<String, Value>) {
        let spec = child(object, "spec");
        set(spec, "concurrencyPolicy", json!("Allow"));
        set(spec, "suspend", json!(false));
        set(spec, "successfulJobsHistoryLimit", json!(3));
        set(spec, "failedJobsHistoryLimit", json!(1));
        let template = child(spec, "jobTemplate");
        set(template, "metadata", json!({}));
        job::default_template(child(template, "spec"));
    }

    fn validate_against(&self, object: &Value, old: Option<&Value>, errors: &mut Errors) {
        let root = Field::root(object);
        let spec = root.at("spec");
        schedule(&spec, errors);
        spec.at("startingDeadlineSeconds").at_least_0(errors);
        let zone = spec.at("timeZone");
        if zone.is_set() {
            time_zone(&zone, errors);
        }
        spec.at("concurrencyPolicy").required_one_of(&["Allow", "Forbid", "Replace"], errors);
        let path = "spec.jobTemplate.spec";
        let job = root.below(path);
        job::validate_spec((object, old), path, errors);
        if job.at("selector").is_set() {
            job.at("selector").invalid("`selector` will be auto-generated", errors);
        }
        if job.at("manualSelector").value == &Value::Bool(true) {
            errors.not_supported(job.at("manualSelector").path, &Value::Bool(true), &["nil", "false"]);
        }
        none_negative(&spec, &["successfulJobsHistoryLimit", "failedJobsHistoryLimit"], errors);
        let name = root.below("metadata.name");
        if name.text().len() > MAX_NAME {
            name.invalid(&format!("must be no more than {MAX_NAME} characters"), errors);
        }
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let name = workload::name_warning(new, old, workload::POD_NAMES);
        let mut found: Vec<String> = name.into_iter().collect();
        found.extend(job::spec_warnings(new, old, "spec.jobTemplate.spec"));
        if old.is_some() && new["spec"]["schedule"].as_str().is_some_and(|schedule| schedule.contains("TZ")) {
            // The path is upstream's.
            found.push("cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details".to_owned());
        }
        found
    }
}

fn schedule(spec: &Field<'_>, errors: &mut Errors) {
    let schedule = spec.at("schedule");
    if schedule.text().is_empty() {
        return schedule.required("", errors);
    }
    if let Err(why) = Schedule::parse(schedule.text()) {
        schedule.invalid(&why, errors);
    }
    if schedule.text().contains("TZ") {
        schedule.invalid("cannot use TZ or CRON_TZ in schedule, use timeZone field instead", errors);
    }
}

fn time_zone(zone: &Field<'_>, errors: &mut Errors) {
    let name = zone.text();
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+' | '.' | '~');
    if name.is_empty() {
        return zone.invalid("timeZone must be nil or non-empty string", errors);
    }
    if name.split('/').any(|part| matches!(part, "." | ".." | "") || part.starts_with('-') || !part.chars().all(fine)) {
        return zone.invalid(&format!("unknown time zone {name}"), errors);
    }
    // Names of zones have upper and lower case, as files have.
    let is_known = TimeZone::get(name).is_ok_and(|found| found.iana_name() == Some(name));
    if name.eq_ignore_ascii_case("local") {
        zone.invalid(ZONES, errors);
    } else if !is_known {
        zone.invalid(&format!("unknown time zone {name}"), errors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Upstream warns about such a schedule wherever it is stored already.
    #[test]
    fn a_stored_zone_in_the_schedule_is_warned_of() {
        let job =
            json!({"metadata": {"name": "j"}, "spec": {"schedule": "TZ=UTC * * * * *", "jobTemplate": {"spec": {}}}});
        let wanted = "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details";
        assert_eq!(CronJob.warnings(&job, Some(&job)), [wanted]);
        assert_eq!(CronJob.warnings(&job, None), [""; 0]);
    }
}
