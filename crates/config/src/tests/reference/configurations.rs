//! Ten configurations as distributions and large domains ship them, in our own words.

/// Paths and their content.
pub(super) type Files = &'static [(&'static str, &'static str)];

/// A machine with a configuration, and the requested repository.
pub(super) struct Configuration {
    pub(super) what: &'static str,
    pub(super) name: &'static str,
    pub(super) files: Files,
    /// Links and their targets.
    pub(super) links: Files,
    /// Values that must come out, lest both sides agree on nothing. An empty one is one that is not set.
    pub(super) expected: Files,
}

/// File of every client package.
const DEFAULT: &str = r#"CVMFS_CLIENT_PROFILE=
CVMFS_CACHE_BASE=/var/lib/cvmfs
CVMFS_QUOTA_LIMIT=4000   # megabytes
CVMFS_NFILES=131072
CVMFS_KEYS_DIR=/etc/cvmfs/keys
# CVMFS_SYSLOG_FACILITY=
if [ "x$CVMFS_BASE_ENV" = "x" ]; then
  readonly CVMFS_MOUNT_DIR=@@/cvmfs
  readonly CVMFS_BASE_ENV=1
fi
"#;

/// Setting of the configuration repository in Debian's package.
const DEBIAN: &str = r#"CVMFS_REPOSITORY_IS_USED=
if [ -f @@/etc/debian_version ] && grep -q "buzz\|rex" @@/etc/debian_version;
then
    :
else
    CVMFS_CONFIG_REPOSITORY=settings.example.org
fi
CVMFS_DEFAULT_DOMAIN=example.org
"#;

/// Setting in packages of other distributions.
const PLAIN: &str = "CVMFS_CONFIG_REPOSITORY=settings.example.org\nCVMFS_DEFAULT_DOMAIN=example.org\n";

/// A file that each domain of the configuration repository sources.
const COMMON: &str = r#"if [ "$CVMFS_CLIENT_PROFILE" = "single" ]; then
  if [ "$CVMFS_HTTP_PROXY" = "" ]; then
    CVMFS_HTTP_PROXY="auto;DIRECT"
  fi
fi
if [ -z "$CVMFS_USE_CDN" ]; then
  if [ "$CVMFS_HTTP_PROXY" = "DIRECT" ] || [ "$CVMFS_HTTP_PROXY" = "auto;DIRECT" ]; then
    CVMFS_USE_CDN=yes
  fi
fi
if [ "$CVMFS_USE_CDN" != "yes" ] && [ "$CVMFS_CLIENT_PROFILE" != "custom" ]; then
  CVMFS_FALLBACK_PROXY="http://backup1.example.org:3126;http://backup2.example.org:3126"
fi
"#;

/// A domain of the configuration repository.
const DOMAIN: &str = r#"CVMFS_USE_CDN="$CVMFS_USE_CDN"
CVMFS_HTTP_PROXY="$CVMFS_HTTP_PROXY"
CVMFS_FALLBACK_PROXY="$CVMFS_FALLBACK_PROXY"
. ../common.conf

if [ "$CVMFS_USE_CDN" = "yes" ]; then
    CVMFS_SERVER_URL="http://cdn1.example.net/cvmfs/@fqrn@;http://cdn2.example.net:8080/cvmfs/@fqrn@"
else
    CVMFS_SERVER_URL="http://s1.example.org:8000/cvmfs/@org@.example.org"
    CVMFS_SERVER_URL="$CVMFS_SERVER_URL;http://s2.example.org:8000/cvmfs/@fqrn@"
fi
CVMFS_KEYS_DIR=$CVMFS_MOUNT_DIR/$CVMFS_CONFIG_REPOSITORY/etc/cvmfs/keys/example.org
"#;

/// The defaults of the configuration repository; an unset name counts as 0.
const REPOSITORY: &str = r#"if [ -z "$CVMFS_PAC_URLS" ] || [ "$CVMFS_PAC_URLS" = "http://wpad/wpad.dat" ]; then
  if [ "$((CVMFS_NOT_SET % 2))" -eq 1 ]; then
    CVMFS_PAC_URLS="http://wpad/wpad.dat;http://one.example.org/wpad.dat"
  else
    CVMFS_PAC_URLS="http://wpad/wpad.dat;http://two.example.org/wpad.dat"
  fi
fi
CVMFS_HIDE_MAGIC_XATTRS=yes
CVMFS_CONFIG_REPO_DEFAULT_ENV=1
"#;

/// The folder of the configuration repository.
pub(super) const R: &str = "cvmfs/settings.example.org/etc/cvmfs";

/// The ten configurations.
pub(super) const ALL: &[Configuration] = &[
    Configuration {
        what: "an old Debian, which has no configuration repository",
        name: "sw.example.org",
        files: &[
            ("etc/cvmfs/default.conf", DEFAULT),
            ("etc/cvmfs/default.d/50-debian.conf", DEBIAN),
            ("etc/debian_version", "rex/sid\n"),
            ("etc/cvmfs/domain.d/example.org.conf", DOMAIN_OF_PACKAGE),
        ],
        links: &[],
        expected: &[
            ("CVMFS_CONFIG_REPOSITORY", ""),
            (
                "CVMFS_SERVER_URL",
                "http://a.example.org/cvmfs/sw.example.org;http://b.example.org/cvmfs/sw.example.org",
            ),
            ("CVMFS_DEFAULT_DOMAIN", "example.org"),
        ],
    },
    Configuration {
        what: "Debian on a laptop: the configuration repository, a single client, no proxy",
        name: "sw.example.org",
        files: &[
            ("etc/cvmfs/default.conf", DEFAULT),
            ("etc/cvmfs/default.d/50-debian.conf", DEBIAN),
            ("etc/debian_version", "13.1\n"),
            ("etc/cvmfs/default.local", "CVMFS_CLIENT_PROFILE=single\nCVMFS_QUOTA_LIMIT=$((20 * 1024))\n"),
            ("cvmfs/settings.example.org/etc/cvmfs/default.conf", REPOSITORY),
            ("cvmfs/settings.example.org/etc/cvmfs/common.conf", COMMON),
            ("cvmfs/settings.example.org/etc/cvmfs/domain.d/example.org.conf", DOMAIN),
            ("etc/cvmfs/domain.d/example.org.conf", DOMAIN_OF_PACKAGE),
        ],
        links: &[],
        expected: &[
            ("CVMFS_CONFIG_REPOSITORY", "settings.example.org"),
            ("CVMFS_USE_CDN", "yes"),
            ("CVMFS_HTTP_PROXY", "auto;DIRECT"),
            ("CVMFS_FALLBACK_PROXY", ""),
            ("CVMFS_QUOTA_LIMIT", "20480"),
            ("CVMFS_PAC_URLS", "http://wpad/wpad.dat;http://two.example.org/wpad.dat"),
        ],
    },
    Configuration {
        what: "Red Hat in a cluster with proxies",
        name: "sw.example.org",
        files: &[
            ("etc/cvmfs/default.conf", DEFAULT),
            ("etc/cvmfs/default.d/50-site.conf", PLAIN),
            (
                "etc/cvmfs/default.local",
                "CVMFS_HTTP_PROXY='http://p1:3128|http://p2:3128;DIRECT'\nCVMFS_CACHE_BASE=/scratch/cvmfs\n",
            ),
            ("cvmfs/settings.example.org/etc/cvmfs/default.conf", REPOSITORY),
            ("cvmfs/settings.example.org/etc/cvmfs/common.conf", COMMON),
            ("cvmfs/settings.example.org/etc/cvmfs/domain.d/example.org.conf", DOMAIN),
        ],
        links: &[],
        expected: &[
            ("CVMFS_FALLBACK_PROXY", "http://backup1.example.org:3126;http://backup2.example.org:3126"),
            (
                "CVMFS_SERVER_URL",
                "http://s1.example.org:8000/cvmfs/sw.example.org;http://s2.example.org:8000/cvmfs/sw.example.org",
            ),
        ],
    },
    Configuration {
        what: "a package that requires its configuration repository, asked for that repository itself",
        name: "settings.example.org",
        files: &[
            ("etc/cvmfs/default.conf", DEFAULT),
            (
                "etc/cvmfs/default.d/60-grid.conf",
                "CVMFS_SEND_INFO_HEADER=yes\nCVMFS_USE_GEOAPI=yes\nCVMFS_CONFIG_REPOSITORY=settings.example.org\n\
                 CVMFS_CONFIG_REPO_REQUIRED=yes\nCVMFS_FALLBACK_PROXY=\"http://b1:3126;http://b2:3126\"\n",
            ),
            (
                "etc/cvmfs/config.d/settings.example.org.conf",
                r#"if [ "$(($$ % 1))" -eq 1 ]; then
    CVMFS_PAC_URLS="http://never/wpad.dat"
else
    CVMFS_PAC_URLS="http://always/wpad.dat"
fi
if [ "$CVMFS_USE_CDN" = "yes" ] || [ "$CVMFS_CLIENT_PROFILE" = "custom" ]; then
    CVMFS_FALLBACK_PROXY=""
fi
CVMFS_HTTP_PROXY="${CVMFS_HTTP_PROXY:=DIRECT}"
CVMFS_SERVER_URL="http://s1/cvmfs/@fqrn@"
"#,
            ),
            ("cvmfs/settings.example.org/etc/cvmfs/default.conf", "CVMFS_SERVER_URL=http://not-read\n"),
        ],
        links: &[],
        expected: &[
            ("CVMFS_HTTP_PROXY", "DIRECT"),
            ("CVMFS_PAC_URLS", "http://always/wpad.dat"),
            ("CVMFS_SERVER_URL", "http://s1/cvmfs/settings.example.org"),
        ],
    },
    Configuration {
        what: "a site with a custom profile, whose content is served by a CDN of its own",
        name: "vo.grid.example.org",
        files: &[
            ("etc/cvmfs/default.conf", DEFAULT),
            ("etc/cvmfs/default.d/50-site.conf", PLAIN),
            (
                "etc/cvmfs/default.local",
                "CVMFS_CLIENT_PROFILE=custom\nexport CVMFS_USE_CDN=yes\nCVMFS_HTTP_PROXY=DIRECT\n",
            ),
            ("cvmfs/settings.example.org/etc/cvmfs/common.conf", COMMON),
            // The domain has three parts; this one sources the other's file.
            ("cvmfs/settings.example.org/etc/cvmfs/domain.d/grid.example.org.conf", DOMAIN),
        ],
        links: &[],
        expected: &[
            (
                "CVMFS_SERVER_URL",
                "http://cdn1.example.net/cvmfs/vo.grid.example.org;http://cdn2.example.net:8080/cvmfs/vo.grid.example.org",
            ),
            ("CVMFS_FALLBACK_PROXY", ""),
        ],
    },
    Configuration {
        what: "a domain without a configuration repository",
        name: "software.stack.example",
        files: &[
            ("etc/cvmfs/default.conf", DEFAULT),
            (
                "etc/cvmfs/default.d/50-site.conf",
                "CVMFS_CONFIG_REPOSITORY=\"\"\nCVMFS_DEFAULT_DOMAIN=\"stack.example\"\n",
            ),
            (
                "etc/cvmfs/domain.d/stack.example.conf",
                "CVMFS_SERVER_URL=\"http://eu.stack.example/cvmfs/@fqrn@;http://us.stack.example/cvmfs/@fqrn@\"\n\
                 CVMFS_KEYS_DIR=\"/etc/cvmfs/keys/stack.example\"\nCVMFS_USE_GEOAPI=\"yes\"\n",
            ),
            (
                "etc/cvmfs/domain.d/stack.example.local",
                "CVMFS_SERVER_URL=\"http://mirror/cvmfs/@fqrn@;${CVMFS_SERVER_URL}\"\nCVMFS_USE_GEOAPI=no\n",
            ),
        ],
        links: &[],
        expected: &[
            (
                "CVMFS_SERVER_URL",
                "http://mirror/cvmfs/software.stack.example;http://eu.stack.example/cvmfs/software.stack.example;http://us.stack.example/cvmfs/software.stack.example",
            ),
            ("CVMFS_USE_GEOAPI", "no"),
        ],
    },
    Configuration {
        what: "external data: long lists, a cache of its own, a sourced file with certificates",
        name: "data.example.org",
        files: &[
            ("etc/cvmfs/default.conf", DEFAULT),
            ("etc/cvmfs/default.d/50-site.conf", PLAIN),
            ("etc/cvmfs/default.local", "CVMFS_HTTP_PROXY=http://p:3128\n"),
            ("cvmfs/settings.example.org/etc/cvmfs/common.conf", COMMON),
            ("cvmfs/settings.example.org/etc/cvmfs/domain.d/example.org.conf", DOMAIN),
            (
                "cvmfs/settings.example.org/etc/cvmfs/config.d/data.example.org.conf",
                r#"CVMFS_AUTHZ_HELPER=
X509_CERT_DIR=
CVMFS_MAX_RETRIES=
. $CVMFS_MOUNT_DIR/$CVMFS_CONFIG_REPOSITORY/libexec/auth.conf
CVMFS_EXTERNAL_URL="http://c1.example.org:8443/"
CVMFS_EXTERNAL_URL="$CVMFS_EXTERNAL_URL;http://c2.example.org:8443/"
# CVMFS_EXTERNAL_URL="$CVMFS_EXTERNAL_URL;http://gone.example.org:8443/"
CVMFS_EXTERNAL_URL="$CVMFS_EXTERNAL_URL;http://c3.example.org:8443/"
CVMFS_CACHE_BASE="$CVMFS_CACHE_BASE/data"
CVMFS_FALLBACK_PROXY=""
CVMFS_HIDE_MAGIC_XATTRS=no
"#,
            ),
            (
                "cvmfs/settings.example.org/libexec/auth.conf",
                r#"CVMFS_MAX_RETRIES=0
CVMFS_NOT_TAKEN_OVER=1
CVMFS_AUTHZ_HELPER=token
if [ ! -f @@/etc/certificates/root.pem ]; then
    X509_CERT_DIR="$CVMFS_MOUNT_DIR/certificates"
else
    X509_CERT_DIR=@@/etc/certificates
fi
"#,
            ),
            ("etc/certificates/root.pem", "x"),
        ],
        links: &[],
        expected: &[
            (
                "CVMFS_EXTERNAL_URL",
                "http://c1.example.org:8443/;http://c2.example.org:8443/;http://c3.example.org:8443/",
            ),
            ("CVMFS_CACHE_BASE", "/var/lib/cvmfs/data"),
            ("X509_CERT_DIR", "@@/etc/certificates"),
            ("CVMFS_MAX_RETRIES", "0"),
            ("CVMFS_NOT_TAKEN_OVER", ""),
        ],
    },
    Configuration {
        what: "files of single repositories: more descriptors, exported names, defaults that are assigned",
        name: "sw.example.org",
        files: &[
            ("etc/cvmfs/default.conf", DEFAULT),
            ("etc/cvmfs/default.d/50-site.conf", PLAIN),
            ("etc/cvmfs/default.local", "CVMFS_HTTP_PROXY=DIRECT\nCVMFS_USE_CDN=no\n"),
            (
                "cvmfs/settings.example.org/etc/cvmfs/config.d/sw.example.org.conf",
                "if [ -z $CVMFS_NFILES ] || [ $CVMFS_NFILES -lt 524288 ]; then\n  CVMFS_NFILES=524288\nfi\n\
                 export LOCAL_SITE\nexport SW_VERSION=${SW_VERSION:=default}\n\
                 CVMFS_SERVER_URL=http://single/cvmfs/@fqrn@\nCVMFS_KEYS_DIR=\n\
                 CVMFS_PUBLIC_KEY=\"$CVMFS_MOUNT_DIR/$CVMFS_CONFIG_REPOSITORY/etc/cvmfs/keys/sw.pub\"\n",
            ),
            (
                "etc/cvmfs/config.d/sw.example.org.local",
                "if [ $CVMFS_MISSING -gt 5 ]; then SW=1; else SW=2; fi\nSW=$SW\n",
            ),
        ],
        links: &[],
        expected: &[
            ("CVMFS_NFILES", "524288"),
            ("SW_VERSION", "default"),
            ("CVMFS_KEYS_DIR", ""),
            ("CVMFS_PUBLIC_KEY", "@@/cvmfs/settings.example.org/etc/cvmfs/keys/sw.pub"),
            ("SW", "2"),
        ],
    },
    Configuration {
        what: "a site that looks at the machine",
        name: "sw.example.org",
        files: &[
            ("etc/cvmfs/default.conf", DEFAULT),
            (
                "etc/cvmfs/default.local",
                r#"SITE_HOST=$(hostname -s)
SITE_SYSTEM=`uname -s`-`uname -m`-$(uname -r)
SITE_USER=$(id -u)
case $(hostname) in
  *[!a-zA-Z0-9.-]*) CVMFS_HTTP_PROXY=http://odd:3128 ;;
  nothing-like-it*) CVMFS_HTTP_PROXY=http://other:3128 ;;
  *) CVMFS_HTTP_PROXY=http://usual:3128 ;;
esac
CVMFS_HTTP_PROXY=$CVMFS_HTTP_PROXY
if [ "$(uname -m)" = "nothing" ] || command -v no-such-program >/dev/null 2>&1; then
  CVMFS_QUOTA_LIMIT=1
elif command -v sh > /dev/null && [ -d / -a ! -e @@/none ]; then
  CVMFS_QUOTA_LIMIT=2
fi
"#,
            ),
        ],
        links: &[],
        expected: &[("CVMFS_HTTP_PROXY", "http://usual:3128"), ("CVMFS_QUOTA_LIMIT", "2")],
    },
    Configuration {
        what: "a domain that is a link to another, with names that only sourced files set",
        name: "sw.twin.example.org",
        files: &[
            ("etc/cvmfs/default.conf", DEFAULT),
            ("etc/cvmfs/default.d/50-site.conf", PLAIN),
            ("etc/cvmfs/default.local", "CVMFS_HTTP_PROXY=DIRECT\n"),
            ("cvmfs/settings.example.org/etc/cvmfs/common.conf", COMMON),
            (
                "cvmfs/settings.example.org/etc/cvmfs/domain.d/example.org.conf",
                "CVMFS_HTTP_PROXY=\"$CVMFS_HTTP_PROXY\"\n. ../common.conf\n\
                 if [ \"$CVMFS_USE_CDN\" = \"yes\" ]; then CVMFS_SERVER_URL=http://cdn/cvmfs/@fqrn@\n\
                 CVMFS_USE_GEOAPI=no\nelse\nCVMFS_SERVER_URL=http://s1/cvmfs/@fqrn@\nfi\nCVMFS_USE_GEOAPI=yes\n",
            ),
        ],
        links: &[("cvmfs/settings.example.org/etc/cvmfs/domain.d/twin.example.org.conf", "example.org.conf")],
        expected: &[
            ("CVMFS_SERVER_URL", "http://cdn/cvmfs/sw.twin.example.org"),
            ("CVMFS_USE_CDN", ""),
            ("CVMFS_USE_GEOAPI", "yes"),
        ],
    },
];

/// The domain in the client's package, for when there is no configuration repository.
const DOMAIN_OF_PACKAGE: &str = r#"if [ "$CVMFS_CONFIG_REPO_DEFAULT_ENV" = "" ]; then
  # Both are on the network.
  if [ "$CVMFS_USE_CDN" = "yes" ]; then
    CVMFS_SERVER_URL="http://cdn.example.net/cvmfs/@fqrn@"
  else
    CVMFS_SERVER_URL="http://a.example.org/cvmfs/@fqrn@;http://b.example.org/cvmfs/@fqrn@"
  fi
  CVMFS_KEYS_DIR=/etc/cvmfs/keys/example.org
fi
"#;
