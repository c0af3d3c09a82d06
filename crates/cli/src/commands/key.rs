mod copy;
mod list;
mod protect;
mod request;
mod revoke;
mod rotate;

commands! {
    /// Lists, replaces, copies and encrypts keys, and signs whitelists on another machine.
    ///
    /// Example: esker key list sw.example.org
    args, call;
    List(list::Args) => list::run(&args, call.settings);
    Rotate(rotate::Args) => rotate::run(&args, call.settings);
    Revoke(revoke::Args) => revoke::run(&args, call.settings);
    Import(copy::ImportArgs) => copy::import(&args, call.settings);
    Export(copy::ExportArgs) => copy::export(&args, call.settings);
    Encrypt(protect::EncryptArgs) => protect::encrypt(&args, call.settings);
    Signer(protect::SignerArgs) => protect::signer(&args, call.settings);
    Request(request::RequestArgs) => request::request(&args, call.settings);
    Sign(request::SignArgs) => request::sign(&args, call.settings);
    Apply(request::ApplyArgs) => request::apply(&args, call.settings);
}
