use drover_templates::{EmbeddedFile, embedded};

/// The built-in templates of addons.
pub(super) const CATALOGUE: &[EmbeddedFile] = &[
    embedded!("../../catalogue/addons/", "index.yaml"),
    embedded!("../../catalogue/addons/", "parts.j2"),
    embedded!("../../catalogue/addons/", "load-balancer.yaml"),
    embedded!("../../catalogue/addons/", "load-balancer.sh.j2"),
    embedded!("../../catalogue/addons/", "haproxy.cfg.j2"),
    embedded!("../../catalogue/addons/", "jump-host.yaml"),
    embedded!("../../catalogue/addons/", "jump-host.sh.j2"),
    embedded!("../../catalogue/addons/", "host.sh.j2"),
    embedded!("../../catalogue/addons/", "ssh-config.j2"),
    embedded!("../../catalogue/addons/", "sshd-config.j2"),
    embedded!("../../catalogue/addons/", "oidc-provider.yaml"),
];
