"""Past one process: files of requests, and several servers that look like one. Read in this order.

`lines`      the lines of a batch file, and the lines of its results
`journal`    what a batch has finished, on disk, so that a batch that was killed goes on
`answering`  answers lines with the model of this process
`batch`      `spectr batch`: reads a file, answers what is missing, writes the results
`cluster`    a Ray cluster, joined or started
`on_ray`     a batch with workers on it
`ring`       which replica a request goes to
`replicas`   replicas as a router sees them; `over_http` reaches servers by their addresses
`ledger`     what a client has of a stream
`router`     holds the streams of clients, and goes on with them where a replica is lost; `tallies` counts
`plan`       what `spectr deploy` is told
`serving`    replicas and routers as deployments of Ray Serve
`deploy`     starts and changes them
"""
