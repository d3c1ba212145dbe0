// The applications of docker-compose.yml, as a script for k6.
//
// Requests begin at a fixed rate, regardless of the answers to earlier ones, like those of many independent applications. A
// generator that waits for answers would slow down as soon as weir makes requests wait, and would hide the wait.
//
// The provider allows ten requests a second. A round of five minutes shows, one after the other: enough room; a
// little too much, so that requests wait; far too much, so that the queue fills and some are refused; and the queue
// becoming empty again. Then the container starts anew.
import http from 'k6/http';

// The most open requests: a hundred wait in a queue with a timeout of 10 s at ten permits a second; others are under way.
const OPEN_MAX = 150;

export const options = {
  discardResponseBodies: true,
  scenarios: {
    applications: {
      executor: 'ramping-arrival-rate',
      startRate: 8,
      timeUnit: '1s',
      preAllocatedVUs: OPEN_MAX,
      maxVUs: OPEN_MAX,
      stages: [
        { duration: '90s', target: 8 },
        { duration: '0s', target: 12 },
        { duration: '45s', target: 12 },
        { duration: '0s', target: 25 },
        { duration: '45s', target: 25 },
        { duration: '0s', target: 5 },
        { duration: '120s', target: 5 },
      ],
    },
  },
};

const target = __ENV.TARGET || 'http://load-balancer:8080';

export default function () {
  // One name for all requests: otherwise k6 counts each address by itself.
  http.get(`${target}/orders/${__ITER}`, { tags: { name: 'orders' }, timeout: '60s' });
}
