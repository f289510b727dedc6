//! Launch templates.

use tokio::time::Instant;

use crate::ec2::model::{LaunchTemplate, State, new_id};
use crate::ec2::params::{Filters, Outcome, Params, invalid_value, wrong};
use crate::ec2::xml::Xml;
use crate::ec2::{ACCOUNT, World};

impl World {
    /// Resolves a template by its id or its name.
    fn template_id(&self, state: &State, params: &Params) -> Outcome<String> {
        match (
            params.get("LaunchTemplateId"),
            params.get("LaunchTemplateName"),
        ) {
            (Some(_), Some(_)) | (None, None) => {
                let message = "Either a launch template ID or a launch template name must be specified in the request";
                Err(wrong("InvalidParameterCombination", message))
            }
            (Some(id), None) if state.templates.contains_key(id) => Ok(id.to_owned()),
            (Some(id), None) => {
                let message = format!(
                    "The specified launch template, with template ID {id}, does not exist."
                );
                Err(wrong("InvalidLaunchTemplateId.NotFound", message))
            }
            (None, Some(name)) => {
                let found = state
                    .templates
                    .iter()
                    .find(|(_, template)| template.name == name);
                let message =
                    "The specified launch template, with template name {}, does not exist.";
                let none = || {
                    wrong(
                        "InvalidLaunchTemplateName.NotFoundException",
                        message.replace("{}", name),
                    )
                };
                found.map(|(id, _)| id.clone()).ok_or_else(none)
            }
        }
    }

    /// Returns the parameters of the launch template that a RunInstances call names.
    pub(crate) fn template_of(&self, state: &State, params: &Params) -> Outcome<Option<Params>> {
        let named = params.part("LaunchTemplate");
        if !params.has("LaunchTemplate") {
            return Ok(None);
        }
        let id = self.template_id(state, &named)?;
        let Some(template) = state.templates.get(&id) else {
            return Ok(None);
        };
        let version = number(template, &id, named.get("Version").unwrap_or("$Default"))?;
        Ok(template.versions.get(version - 1).cloned())
    }

    pub(crate) fn create_launch_template(
        &self,
        state: &mut State,
        params: &Params,
        now: Instant,
    ) -> Outcome<Xml> {
        let name = params.need("LaunchTemplateName")?.to_owned();
        let tags = params.tags_for("launch-template")?;
        let data = data(params)?;
        if state
            .templates
            .values()
            .any(|template| template.name == name)
        {
            let message = "Launch template name already in use.";
            return Err(wrong(
                "InvalidLaunchTemplateName.AlreadyExistsException",
                message,
            ));
        }
        let id = new_id("lt");
        let template = LaunchTemplate {
            name,
            created: self.timestamp(now),
            default: 1,
            versions: vec![data],
        };
        self.made(
            "launch-template",
            &id,
            params.get("ClientToken"),
            &tags,
            false,
        );
        state.tags.insert(id.clone(), tags);
        state.templates.insert(id.clone(), template);
        let mut xml = Xml::new();
        xml.nest("launchTemplate", |xml| draw(xml, state, &id));
        Ok(xml)
    }

    pub(crate) fn create_launch_template_version(
        &self,
        state: &mut State,
        params: &Params,
    ) -> Outcome<Xml> {
        let id = self.template_id(state, params)?;
        let data = data(params)?;
        let mut xml = Xml::new();
        if let Some(template) = state.templates.get_mut(&id) {
            template.versions.push(data);
            xml.nest("launchTemplateVersion", |xml| {
                xml.text("launchTemplateId", &id);
                xml.text("launchTemplateName", &template.name);
                xml.value("versionNumber", template.versions.len());
                xml.text("createTime", &template.created);
                xml.value(
                    "createdBy",
                    format_args!("arn:aws:iam::{ACCOUNT}:user/emulated"),
                );
                xml.value(
                    "defaultVersion",
                    template.default == template.versions.len(),
                );
            });
        }
        Ok(xml)
    }

    /// Shows of the data of a version what says where an instance and its volumes go.
    pub(crate) fn describe_launch_template_versions(
        &self,
        state: &State,
        params: &Params,
    ) -> Outcome<Xml> {
        let id = self.template_id(state, params)?;
        let mut xml = Xml::new();
        let Some(template) = state.templates.get(&id) else {
            return Ok(xml);
        };
        let versions = params.list("LaunchTemplateVersion");
        let mut shown = Vec::new();
        for version in &versions {
            shown.push(number(template, &id, version)?);
        }
        if versions.is_empty() {
            shown.extend(1..=template.versions.len());
        }
        xml.list("launchTemplateVersionSet", shown, |xml, version| {
            xml.text("launchTemplateId", &id);
            xml.text("launchTemplateName", &template.name);
            xml.value("versionNumber", version);
            xml.value("defaultVersion", version == template.default);
            if let Some(data) = template.versions.get(version - 1) {
                xml.nest("launchTemplateData", |xml| draw_data(xml, data));
            }
        });
        Ok(xml)
    }

    pub(crate) fn delete_launch_template(
        &self,
        state: &mut State,
        params: &Params,
    ) -> Outcome<Xml> {
        let id = self.template_id(state, params)?;
        let mut xml = Xml::new();
        xml.nest("launchTemplate", |xml| draw(xml, state, &id));
        state.templates.remove(&id);
        state.tags.remove(&id);
        self.ledger.gone(&id);
        Ok(xml)
    }

    pub(crate) fn describe_launch_templates(&self, state: &State, params: &Params) -> Outcome<Xml> {
        let filters = Filters::new(params, &["create-time", "launch-template-name"])?;
        let (ids, names) = (
            params.list("LaunchTemplateId"),
            params.list("LaunchTemplateName"),
        );
        for (field, values) in [("LaunchTemplateId", &ids), ("LaunchTemplateName", &names)] {
            for value in values {
                self.template_id(state, &Params::new(vec![(field.to_owned(), value.clone())]))?;
            }
        }
        let shown = state.templates.iter().filter(|(id, template)| {
            (ids.is_empty() && names.is_empty()
                || ids.contains(id)
                || names.contains(&template.name))
                && filters.hold(state.tags_of(id), |name| match name {
                    "create-time" => vec![template.created.clone()],
                    _ => vec![template.name.clone()],
                })
        });
        let (page, next) = self.page(params, shown.map(|(id, _)| id).collect())?;
        let mut xml = Xml::new();
        xml.list("launchTemplates", page, |xml, id| draw(xml, state, id));
        xml.maybe("nextToken", next.as_deref());
        Ok(xml)
    }
}

/// The number of a version, from 1 on.
fn number(template: &LaunchTemplate, id: &str, version: &str) -> Outcome<usize> {
    let number = match version {
        "$Default" => template.default,
        "$Latest" => template.versions.len(),
        text => text
            .parse()
            .map_err(|_| invalid_value("version", text, "Not a version of a launch template."))?,
    };
    if (1..=template.versions.len()).contains(&number) {
        return Ok(number);
    }
    let message = format!(
        "Could not find the specified version {number} for the launch template with ID {id}."
    );
    Err(wrong("InvalidLaunchTemplateId.VersionNotFound", message))
}

fn draw_data(xml: &mut Xml, data: &Params) {
    xml.maybe("imageId", data.get("ImageId"));
    xml.maybe("instanceType", data.get("InstanceType"));
    let mappings = data.items("BlockDeviceMapping");
    xml.list("blockDeviceMappingSet", mappings, |xml, mapping| {
        xml.maybe("deviceName", mapping.get("DeviceName"));
        xml.nest("ebs", |xml| {
            xml.maybe(
                "deleteOnTermination",
                mapping.get("Ebs.DeleteOnTermination"),
            );
            xml.maybe("volumeSize", mapping.get("Ebs.VolumeSize"));
            xml.maybe("volumeType", mapping.get("Ebs.VolumeType"));
            xml.maybe("encrypted", mapping.get("Ebs.Encrypted"));
        });
    });
    let interfaces = data.items("NetworkInterface");
    xml.list("networkInterfaceSet", interfaces, |xml, interface| {
        xml.text("deviceIndex", interface.get("DeviceIndex").unwrap_or("0"));
        xml.maybe("subnetId", interface.get("SubnetId"));
        let public = interface.get("AssociatePublicIpAddress");
        xml.maybe("associatePublicIpAddress", public);
        xml.nest("groupSet", |xml| {
            for group in interface.list("SecurityGroupId") {
                xml.text("groupId", &group);
            }
        });
    });
}

fn data(params: &Params) -> Outcome<Params> {
    if !params.has("LaunchTemplateData") {
        return Err(wrong(
            "MissingParameter",
            "The request must contain the parameter LaunchTemplateData",
        ));
    }
    Ok(params.part("LaunchTemplateData"))
}

fn draw(xml: &mut Xml, state: &State, id: &str) {
    let Some(template) = state.templates.get(id) else {
        return;
    };
    xml.text("launchTemplateId", id);
    xml.text("launchTemplateName", &template.name);
    xml.text("createTime", &template.created);
    xml.value(
        "createdBy",
        format_args!("arn:aws:iam::{ACCOUNT}:user/emulated"),
    );
    xml.value("defaultVersionNumber", template.default);
    xml.value("latestVersionNumber", template.versions.len());
    xml.tags(state.tags_of(id));
}
