//! What pods want to be near to or far from, and what they tolerate.

use drover_core::Result;
use drover_proto::kubernetes::v1 as api;
use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodAffinity,
    PodAffinityTerm, PodAntiAffinity, PreferredSchedulingTerm, Toleration, WeightedPodAffinityTerm,
};

use super::{
    all, each, effect, effect_of, known, label_selector, named, number, operator, requirement,
    seconds_opt, some, span, to_label_selector,
};

pub(super) fn to_affinity(field: &str, from: api::Affinity) -> Result<Affinity> {
    let path = |name: &str| format!("{field}.{name}");
    let required = each(&path("node_required"), from.node_required, to_node_term)?;
    let preferred = each(
        &path("node_preferred"),
        from.node_preferred,
        |field, term| {
            Ok(PreferredSchedulingTerm {
                weight: weight(field, term.weight)?,
                preference: to_node_term(field, term)?,
            })
        },
    )?;
    let near = to_pod_terms(
        (&path("pod_required"), from.pod_required),
        (&path("pod_preferred"), from.pod_preferred),
    )?;
    let far = to_pod_terms(
        (&path("pod_anti_required"), from.pod_anti_required),
        (&path("pod_anti_preferred"), from.pod_anti_preferred),
    )?;
    Ok(Affinity {
        node_affinity: some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: some(NodeSelector {
                node_selector_terms: required,
            }),
            preferred_during_scheduling_ignored_during_execution: some(preferred),
        }),
        pod_affinity: some(PodAffinity {
            required_during_scheduling_ignored_during_execution: near.0,
            preferred_during_scheduling_ignored_during_execution: near.1,
        }),
        pod_anti_affinity: some(PodAntiAffinity {
            required_during_scheduling_ignored_during_execution: far.0,
            preferred_during_scheduling_ignored_during_execution: far.1,
        }),
    })
}

pub(super) fn affinity(from: Affinity) -> api::Affinity {
    let nodes = from.node_affinity.unwrap_or_default();
    let near = from.pod_affinity.unwrap_or_default();
    let far = from.pod_anti_affinity.unwrap_or_default();
    let required = nodes.required_during_scheduling_ignored_during_execution;
    let terms = required.unwrap_or_default().node_selector_terms.into_iter();
    api::Affinity {
        node_required: terms.map(|term| node_term(term, 0)).collect(),
        node_preferred: all(
            nodes.preferred_during_scheduling_ignored_during_execution,
            |it| node_term(it.preference, it.weight),
        ),
        pod_required: all(
            near.required_during_scheduling_ignored_during_execution,
            |it| pod_term(it, 0),
        ),
        pod_preferred: all(
            near.preferred_during_scheduling_ignored_during_execution,
            |it| pod_term(it.pod_affinity_term, it.weight),
        ),
        pod_anti_required: all(
            far.required_during_scheduling_ignored_during_execution,
            |it| pod_term(it, 0),
        ),
        pod_anti_preferred: all(
            far.preferred_during_scheduling_ignored_during_execution,
            |it| pod_term(it.pod_affinity_term, it.weight),
        ),
    }
}

fn weight(field: &str, from: u32) -> Result<i32> {
    number(&format!("{field}.weight"), from.max(1))
}

fn to_node_term(field: &str, from: api::NodeTerm) -> Result<NodeSelectorTerm> {
    let selector = from.selector.unwrap_or_default();
    let labels = selector.match_labels.into_iter();
    let mut requirements: Vec<_> = labels
        .map(|(key, value)| NodeSelectorRequirement {
            key,
            operator: "In".to_owned(),
            values: Some(vec![value]),
        })
        .collect();
    let field = format!("{field}.selector.match_expressions");
    requirements.extend(each(&field, selector.match_expressions, |field, one| {
        let operator = operator(field, &one)?;
        Ok(NodeSelectorRequirement {
            key: one.key,
            operator: operator.to_owned(),
            values: some(one.values),
        })
    })?);
    Ok(NodeSelectorTerm {
        match_expressions: some(requirements),
        match_fields: None,
    })
}

fn node_term(from: NodeSelectorTerm, weight: i32) -> api::NodeTerm {
    let requirements = all(from.match_expressions, |one| {
        requirement(one.key, &one.operator, one.values)
    });
    api::NodeTerm {
        selector: Some(drover_proto::common::v1::LabelSelector {
            match_labels: [].into(),
            match_expressions: requirements,
        }),
        weight: u32::try_from(weight).unwrap_or(0),
    }
}

type Terms = (
    Option<Vec<PodAffinityTerm>>,
    Option<Vec<WeightedPodAffinityTerm>>,
);

fn to_pod_terms(
    (required_at, required): (&str, Vec<api::PodTerm>),
    (preferred_at, preferred): (&str, Vec<api::PodTerm>),
) -> Result<Terms> {
    let required = each(required_at, required, to_pod_term)?;
    let preferred = each(preferred_at, preferred, |field, term| {
        Ok(WeightedPodAffinityTerm {
            weight: weight(field, term.weight)?,
            pod_affinity_term: to_pod_term(field, term)?,
        })
    })?;
    Ok((some(required), some(preferred)))
}

fn to_pod_term(field: &str, from: api::PodTerm) -> Result<PodAffinityTerm> {
    let selector = from.selector.unwrap_or_default();
    let selector = to_label_selector(&format!("{field}.selector"), selector)?;
    Ok(PodAffinityTerm {
        label_selector: Some(selector),
        topology_key: from.topology_key,
        namespaces: some(from.namespaces),
        ..PodAffinityTerm::default()
    })
}

fn pod_term(from: PodAffinityTerm, weight: i32) -> api::PodTerm {
    api::PodTerm {
        selector: from.label_selector.map(label_selector),
        topology_key: from.topology_key,
        namespaces: from.namespaces.unwrap_or_default(),
        weight: u32::try_from(weight).unwrap_or(0),
    }
}

pub(super) fn to_toleration(field: &str, from: api::Toleration) -> Result<Toleration> {
    let operator = match known(&format!("{field}.operator"), from.operator)? {
        api::TolerationOperator::Unspecified => None,
        api::TolerationOperator::Equal => Some("Equal"),
        api::TolerationOperator::Exists => Some("Exists"),
    };
    let period = format!("{field}.toleration_period");
    Ok(Toleration {
        key: some(from.key),
        operator: operator.map(str::to_owned),
        value: some(from.value),
        effect: effect(&format!("{field}.effect"), from.effect)?,
        toleration_seconds: seconds_opt(&period, from.toleration_period.as_ref())?,
    })
}

pub(super) fn toleration(from: Toleration) -> api::Toleration {
    let operators = [
        ("Equal", api::TolerationOperator::Equal),
        ("Exists", api::TolerationOperator::Exists),
    ];
    let operator = named(&operators, from.operator.as_deref());
    api::Toleration {
        key: from.key.unwrap_or_default(),
        operator: operator.unwrap_or_default().into(),
        value: from.value.unwrap_or_default(),
        effect: effect_of(from.effect.as_deref()),
        toleration_period: from.toleration_seconds.map(span),
    }
}
