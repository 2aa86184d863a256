import { mount } from 'svelte'

import { Client, exportedTrace, ExportedFiles, Server } from './api'
import App from './App.svelte'
import { loadScript } from './load_script'
import { render } from './notebook/widget'
import './page.css'
import { Studio } from './studio.svelte'
import { withoutToken } from './url_hash'

async function startPage(target: HTMLElement): Promise<void> {
  const exported = exportedTrace()
  if (location.search) history.replaceState(history.state, '', withoutToken(location.href)) // a cookie has the token from now on
  const source = exported ? new ExportedFiles(loadScript, exported.content === 'journey') : new Server()
  const studio: Studio = new Studio(new Client(source), exported?.trace ?? null)
  studio.fileLanguage = exported?.language ?? ''
  await studio.loadLanguage()
  const started = studio.start() // its requests do not wait for the page to be mounted
  mount(App, { target, props: { studio } })
  await started
}

const target = document.getElementById('studio')
if (target) void startPage(target)
else Object.assign(globalThis, { rheoscopeRender: render }) // in a notebook, which calls it for every widget
