"""The scenarios `http` and `events`: servers that answer the same requests, and their clients.

GET /wait?topic=T&after=N    the number of messages of the topic, when it is more than N, or after `timeout` seconds
POST /publish?topic=T        one message more
GET /waiting                 the number of requests that wait
GET /now                     an answer at once

Those of `events` differ in the first one:

GET /wait?topic=T            a stream of the topic's events, whose ids are 1, 2, 3 ...
"""
