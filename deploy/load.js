// The applications of docker-compose.yml, as a script for k6.
//
// Requests begin at a rate of their own, whether or not earlier ones have been answered, as those of many independent
// applications do. A generator that waits for answers would slow down as soon as weir makes requests wait, and would hide it.
//
// The provider allows ten requests a second. A round of five minutes shows, one after the other: enough room; a
// little too much, so that requests wait; far too much, so that the queue fills and some are refused; and the queue
// becoming empty again. Then the container starts anew.
import http from 'k6/http';

// Those who wait 10 s for a tenth of a second each are a hundred; some more are on their way.
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
  // One name for all, as each distinct address would otherwise be counted by itself.
  http.get(`${target}/orders/${__ITER}`, { tags: { name: 'orders' }, timeout: '60s' });
}
