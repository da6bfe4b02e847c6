"""Past one process: files of requests, and several servers that look like one. Read in this order.

`lines`          the lines of a batch file, and the lines of its results
`journal`        the finished lines of a batch, on disk, so that a batch that was killed can continue
`answerer`       answers lines with the model of this process
`batch`          `spectr batch`: reads a file, answers what is missing, writes the results
`cluster`        a Ray cluster, joined or started
`on_ray`         a batch with workers on Ray
`ring`           which replica a request goes to
`replicas`       the interface to replicas; `over_http` reaches servers by their addresses
`stream_record`  the part of a stream that its client has
`router`         holds the streams of clients, and continues them where a replica is lost; `metrics` counts
`plan`           the plan of `spectr deploy`
`serving`        replicas and routers as deployments of Ray Serve
`deploy`         starts and changes them
"""
