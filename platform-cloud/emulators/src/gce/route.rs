//! Routing of paths to operations.

use http::Method;

/// Common prefix of all paths.
const BASE: [&str; 3] = ["compute", "v1", "projects"];

/// An operation of the API and the resources that its path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) verb: Verb,
    pub(super) project: String,
    /// Empty if the path has none.
    pub(super) zone: String,
    /// Instance, operation, machine type or image. Empty if the path has none.
    pub(super) name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Insert,
    Get,
    List,
    AggregatedList,
    Delete,
    Stop,
    SetLabels,
    SetMetadata,
    SerialPort,
    OperationGet,
    OperationWait,
    OperationList,
    ZoneList,
    ZoneGet,
    MachineTypeGet,
    MachineTypeList,
    ImageGet,
    FamilyGet,
}

pub(super) fn route(method: &Method, segments: &[String]) -> Option<Route> {
    let parts: Vec<&str> = segments.iter().map(String::as_str).collect();
    let rest = parts.strip_prefix(&BASE[..])?;
    let (project, rest) = rest.split_first()?;
    let get = method == Method::GET;
    let post = method == Method::POST;
    let (verb, zone, name) = match rest {
        ["aggregated", "instances"] if get => (Verb::AggregatedList, "", ""),
        ["zones"] if get => (Verb::ZoneList, "", ""),
        ["zones", zone] if get => (Verb::ZoneGet, *zone, ""),
        ["zones", zone, "instances"] if get => (Verb::List, *zone, ""),
        ["zones", zone, "instances"] if post => (Verb::Insert, *zone, ""),
        ["zones", zone, "instances", name] if get => (Verb::Get, *zone, *name),
        ["zones", zone, "instances", name] if method == Method::DELETE => {
            (Verb::Delete, *zone, *name)
        }
        ["zones", zone, "instances", name, "stop"] if post => (Verb::Stop, *zone, *name),
        ["zones", zone, "instances", name, "setLabels"] if post => (Verb::SetLabels, *zone, *name),
        ["zones", zone, "instances", name, "setMetadata"] if post => {
            (Verb::SetMetadata, *zone, *name)
        }
        ["zones", zone, "instances", name, "serialPort"] if get => (Verb::SerialPort, *zone, *name),
        ["zones", zone, "operations"] if get => (Verb::OperationList, *zone, ""),
        ["zones", zone, "operations", name] if get => (Verb::OperationGet, *zone, *name),
        ["zones", zone, "operations", name, "wait"] if post => (Verb::OperationWait, *zone, *name),
        ["zones", zone, "machineTypes"] if get => (Verb::MachineTypeList, *zone, ""),
        ["zones", zone, "machineTypes", name] if get => (Verb::MachineTypeGet, *zone, *name),
        ["global", "images", "family", name] if get => (Verb::FamilyGet, "", *name),
        ["global", "images", name] if get => (Verb::ImageGet, "", *name),
        _ => return None,
    };
    Some(Route {
        verb,
        project: (*project).to_owned(),
        zone: zone.to_owned(),
        name: name.to_owned(),
    })
}

impl Route {
    /// The API's own name of the operation.
    pub(super) fn operation(&self) -> &'static str {
        match self.verb {
            Verb::Insert => "instances.insert",
            Verb::Get => "instances.get",
            Verb::List => "instances.list",
            Verb::AggregatedList => "instances.aggregatedList",
            Verb::Delete => "instances.delete",
            Verb::Stop => "instances.stop",
            Verb::SetLabels => "instances.setLabels",
            Verb::SetMetadata => "instances.setMetadata",
            Verb::SerialPort => "instances.getSerialPortOutput",
            Verb::OperationGet => "zoneOperations.get",
            Verb::OperationWait => "zoneOperations.wait",
            Verb::OperationList => "zoneOperations.list",
            Verb::ZoneList => "zones.list",
            Verb::ZoneGet => "zones.get",
            Verb::MachineTypeGet => "machineTypes.get",
            Verb::MachineTypeList => "machineTypes.list",
            Verb::ImageGet => "images.get",
            Verb::FamilyGet => "images.getFromFamily",
        }
    }

    pub(super) fn parameters(&self) -> Vec<(String, String)> {
        [
            ("project", &self.project),
            ("zone", &self.zone),
            ("name", &self.name),
        ]
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(key, value)| (key.to_owned(), value.clone()))
        .collect()
    }
}
