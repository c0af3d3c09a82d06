# The demo's table from its times, sorted: state, microseconds, objects fetched, bytes fetched.
{
    times[$1, ++runs[$1]] = $2
    objects[$1] = $3
    bytes[$1] = $4
}

function median(state) { return times[state, int((runs[state] + 1) / 2)] }

function line(title, form, values, divisor,    text, i) {
    text = sprintf("%-16s", title)
    for (i = 1; i <= 4; i++)
        text = text sprintf("%10s", values[states[i]] == "" ? "" : sprintf(form, values[states[i]] / divisor))
    print text
}

END {
    split("native cold warm hot", states, " ")
    for (i = 1; i <= 4; i++)
        medians[states[i]] = median(states[i])
    printf "\n%-16s%10s%10s%10s%10s\n", "", "native", "cold", "warm", "hot"
    line("seconds", "%.3f", medians, 1e6)
    line("times native", "%.2f", medians, medians["native"])
    line("objects fetched", "%d", objects, 1)
    line("MiB fetched", "%.1f", bytes, 1048576)
    print ""
    print "native: from the folder itself, which is in memory (median of " runs["native"] " runs)"
    print "cold: the first run; the client has nothing, the server is on this machine"
    print "warm: with a new daemon; its cache is on disk and was dropped from memory"
    print "hot: once more in the same mount, in turns with native (median of " runs["hot"] " runs)"
    print ""
}
