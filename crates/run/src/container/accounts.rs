//! `/etc/passwd` and `/etc/group` of a container: the image's, with the calling user added.
//!
//! On a cluster accounts come from a directory server that programs in an image can't ask.

/// A user account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// User name.
    pub name: String,
    /// Number of the user.
    pub uid: u32,
    /// Number of the primary group.
    pub gid: u32,
    /// Home directory.
    pub home: String,
    /// Login shell.
    pub shell: String,
}

/// A group, with its name if it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Number of the group.
    pub gid: u32,
    /// Name of the group.
    pub name: String,
}

/// Returns the image's `/etc/passwd` with `account` in it. Its line comes first, so that it overrides one of the image
/// with the same number or name.
pub fn passwd(image: &[u8], account: &Account) -> Vec<u8> {
    let Account { name, uid, gid, home, shell } = account;
    let own = format!("{}:x:{uid}:{gid}:{}:{}:{}\n", field(name), field(name), field(home), field(shell));
    let mut text = own.into_bytes();
    for line in lines(image) {
        let mut fields = line.split(|byte| *byte == b':');
        let same_name = fields.next() == Some(name.as_bytes());
        let same_number = fields.nth(1) == Some(uid.to_string().as_bytes());
        if !same_name && !same_number {
            text.extend_from_slice(line);
            text.push(b'\n');
        }
    }
    text
}

/// Returns the image's `/etc/group` with those of `groups` whose numbers it lacks.
pub fn group(image: &[u8], groups: &[Group]) -> Vec<u8> {
    let mut text: Vec<u8> = Vec::new();
    for line in lines(image) {
        text.extend_from_slice(line);
        text.push(b'\n');
    }
    for Group { gid, name } in groups {
        let number = gid.to_string();
        let known =
            lines(image).any(|line| line.split(|byte| *byte == b':').nth(2) == Some(number.as_bytes()));
        if !known {
            text.extend_from_slice(format!("{}:x:{gid}:\n", field(name)).as_bytes());
        }
    }
    text
}

/// Returns all fields of the line with this number in a file of accounts.
pub fn entry(file: &[u8], number: u32) -> Option<Vec<String>> {
    let number = number.to_string();
    lines(file)
        .map(|line| String::from_utf8_lossy(line).split(':').map(str::to_owned).collect::<Vec<_>>())
        .find(|fields| fields.get(2) == Some(&number))
}

fn lines(file: &[u8]) -> impl Iterator<Item = &[u8]> {
    file.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
}

/// Removes characters that would end the field or the line.
fn field(value: &str) -> String {
    value.chars().map(|c| if c == ':' || c.is_control() { '_' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calling_user_is_in_passwd_and_group() {
        let account = Account {
            name: "ada".into(),
            uid: 1001,
            gid: 100,
            home: "/users/ada".into(),
            shell: "/bin/bash".into(),
        };
        let image = b"root:x:0:0:root:/root:/bin/sh\nubuntu:x:1001:1001::/users/ubuntu:/bin/sh\n";
        let made = String::from_utf8(passwd(image, &account)).expect("text");
        assert_eq!(made, "ada:x:1001:100:ada:/users/ada:/bin/bash\nroot:x:0:0:root:/root:/bin/sh\n");
        assert_eq!(entry(made.as_bytes(), 1001).expect("a line")[5], "/users/ada");

        let groups = [Group { gid: 100, name: "users".into() }, Group { gid: 7, name: "a:b\n".into() }];
        let made = String::from_utf8(group(b"staff:x:100:\n", &groups)).expect("text");
        assert_eq!(made, "staff:x:100:\na_b_:x:7:\n");
    }
}
